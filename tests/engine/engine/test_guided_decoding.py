"""Outputs that follow a grammar: masks, ends, errors, waiting for the compiler, forced tokens."""

from __future__ import annotations

import gc
import time
import weakref
from concurrent.futures import Future

import pytest
from engine_support.fake_core import EOS, make_core, run
from engine_support.fake_grammar import FakeGrammar, FakeGrammars, grammar_spec_of
from engine_support.fake_runner import FakeRunner, tokens_alone

from blade_llm.engine.core import EngineCore
from blade_llm.engine.guided_decoding import COMPILE_TIMEOUT_S
from blade_llm.engine.messages import GenerateRequest, RequestOutput
from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.grammar import Grammar

ANY = list(range(3, 40))
FREE = [ANY] * 30
JSON = [[11], [12], [13], ANY, [14], ANY, [15], [16], [17], [18], ANY, [19], []]
"""Two free places between forced ones, and an end-of-sequence token to sample."""
PROMPT = [5, 6, 7]


def request(
    name: str, places: list[list[int]] | None, prompt: list[int] = PROMPT, **sampling: object
) -> GenerateRequest:
    spec = None if places is None else grammar_spec_of(places)
    values = {"max_tokens": 50, "temperature": 0.8, "seed": 3, **sampling}
    return GenerateRequest(
        request_id=name, prompt_token_ids=prompt, sampling=SamplingParams(grammar_spec=spec, **values)
    )


def guided_core(runner: FakeRunner, grammars: FakeGrammars | None = None, **options: object) -> EngineCore:
    return make_core(runner, grammars=grammars or FakeGrammars(), **options)


def result_of(outputs: list[RequestOutput]) -> tuple[list[int], str | None, int | None]:
    tokens = [token for output in outputs for token in output.token_ids]
    return tokens, outputs[-1].finish_reason, outputs[-1].stop_token_id


def expected(message: GenerateRequest, places: list[list[int]] | None) -> tuple[list[int], str, int | None]:
    return tokens_alone(
        message.prompt_token_ids,
        message.sampling,
        vocab_size=97,
        eos_token_ids=(EOS,),
        grammar=None if places is None else FakeGrammar(places),
    )


@pytest.mark.parametrize("late", [False, True])
def test_masks_reach_the_slots_they_belong_to(late: bool) -> None:
    core = guided_core(FakeRunner(late=late))
    cases = {"json": JSON, "free": None, "ends": JSON[:-1], "narrow": [[3, 4], [5, 6], [7, 8]], "none": None}
    messages = [request(name, places, [i, i + 1], seed=i) for i, (name, places) in enumerate(cases.items())]
    for message in messages:
        core.add(message)
    outputs = run(core)
    for message in messages:
        name = message.request_id
        assert result_of(outputs[name]) == expected(message, cases[name])
    assert result_of(outputs["json"])[1:] == ("stop", EOS)
    assert result_of(outputs["ends"])[1:] == ("stop", None)


def test_forced_tokens_are_not_sampled() -> None:
    runner = FakeRunner()
    core = guided_core(runner)
    core.add(request("a", JSON))
    outputs = run(core)["a"]
    assert len(result_of(outputs)[0]) == 12
    # 11 12 with the prompt; 13; any 14; any 15 16 17 18; any 19; the end
    assert [len(output.token_ids) for output in outputs] == [3, 2, 5, 2, 0]
    assert [plan.chunks[0].count for plan in runner.plans] == [5, 1, 2, 5, 2]
    assert outputs[0].cached_tokens == 0


def test_a_device_that_is_ahead_waits_for_forced_tokens_where_it_saves_steps() -> None:
    runner = FakeRunner(late=True)
    core = guided_core(runner)
    core.add(request("a", [ANY, ANY, [11], [12], [13], [14], [15], [16], ANY, ANY]))
    outputs = run(core)["a"]
    assert len(result_of(outputs)[0]) == 10
    assert max(plan.chunks[0].count for plan in runner.plans[1:]) == 6
    assert runner.num_steps <= 8


@pytest.mark.parametrize("late", [False, True])
def test_log_probabilities_are_those_of_sampled_tokens(late: bool) -> None:
    core = guided_core(FakeRunner(late=late))
    core.add(request("a", JSON, logprobs=1))
    outputs = run(core)["a"]
    assert all(len(output.token_ids) == len(output.logprobs or []) for output in outputs)
    assert result_of(outputs) == expected(request("a", JSON), JSON)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("budget", [2, 3, 128])
@pytest.mark.parametrize("blocks", [5, 64])
def test_forced_tokens_within_small_limits(late: bool, budget: int, blocks: int) -> None:
    """Forced tokens beyond a step's budget, over block borders, and requests preempted between them."""
    places = [ANY, *[[20 + i] for i in range(20)], ANY, *[[50 + i] for i in range(30)], ANY, ANY]
    core = guided_core(FakeRunner(num_blocks=blocks, max_num_seqs=4, late=late), max_batch_tokens=budget)
    messages = [request(str(i), places, [i] * (3 + i), seed=i, max_tokens=40 + 4 * i) for i in range(5)]
    for message in messages:
        core.add(message)
    outputs = run(core)
    for message in messages:
        assert result_of(outputs[message.request_id]) == expected(message, places)
    if (blocks, budget) == (5, 128):
        assert core.scheduler.stats().preemptions_total > 0


@pytest.mark.parametrize("late", [False, True])
def test_a_stop_token_among_forced_ones_ends_the_output(late: bool) -> None:
    core = guided_core(FakeRunner(late=late))
    core.add(request("a", JSON, stop_token_ids=(16,)))
    core.add(request("b", JSON, stop_token_ids=(12,)))
    outputs = run(core)
    assert result_of(outputs["a"])[1:] == ("stop", 16)
    assert result_of(outputs["a"])[0][-1] == 15
    assert result_of(outputs["b"]) == ([11], "stop", 12)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("max_tokens", range(1, 13))
def test_max_tokens_cuts_forced_tokens(late: bool, max_tokens: int) -> None:
    core = guided_core(FakeRunner(late=late))
    message = request("a", JSON, max_tokens=max_tokens)
    core.add(message)
    assert result_of(run(core)["a"]) == expected(message, JSON)


@pytest.mark.parametrize("late", [False, True])
def test_min_tokens_do_not_mask_everything(late: bool) -> None:
    core = guided_core(FakeRunner(late=late))
    core.add(request("a", [[3, 4], [3, 4], []], min_tokens=20))
    core.add(request("b", [[3, 4], [3, EOS]], min_tokens=20))
    core.add(request("nothing", [[]], min_tokens=1))
    outputs = run(core)
    assert len(result_of(outputs["a"])[0]) == 2
    assert result_of(outputs["a"])[1] == "stop"
    assert result_of(outputs["b"])[0][1:] == [3]
    assert result_of(outputs["nothing"]) == ([], "stop", None)


def test_nobody_waits_for_ever_for_a_grammar() -> None:
    """All threads that compile may be busy with others' grammar specs."""
    now = [100.0]
    core = guided_core(FakeRunner(), FakeGrammars(late=True), clock=lambda: now[0])
    core.add(request("guided", FREE))
    core.add(request("free", None))
    assert {output.request_id for _ in range(3) for output in core.step()} == {"free"}
    now[0] += COMPILE_TIMEOUT_S
    end = run(core)["guided"][-1]
    assert end.finish_reason == "abort"
    assert "other schemas" in str(end.error)


@pytest.mark.parametrize("late", [False, True])
def test_a_broken_grammar_ends_its_request_alone(late: bool) -> None:
    grammars = FakeGrammars()
    core = guided_core(FakeRunner(late=late), grammars)
    for name in ("bad", "good"):
        core.add(request(name, FREE))
    grammars.made[0].broken = True
    outputs = run(core)
    assert outputs["bad"][-1].finish_reason == "abort"
    assert "left its grammar" in str(outputs["bad"][-1].error)
    assert result_of(outputs["good"]) == expected(request("good", FREE), FREE)


def test_without_a_compiler_a_grammar_spec_is_refused() -> None:
    core = make_core(FakeRunner())
    with pytest.raises(ValueError, match="no grammars"):
        core.add(request("a", JSON))
    assert not core.has_work


def test_a_request_waits_for_its_grammar_and_others_do_not() -> None:
    grammars = FakeGrammars(late=True)
    core = guided_core(FakeRunner(), grammars)
    core.add(request("guided", JSON))
    core.add(request("free", None, max_tokens=3))
    assert [output.request_id for _ in range(3) for output in core.step()] == ["free"] * 3
    assert core.has_work
    assert core.state(epoch="e", sequence=0, draining=False).waiting == 1
    start = time.perf_counter()
    assert core.step() == []
    assert time.perf_counter() - start > 0.005, "it spins while there is nothing to do"
    with pytest.raises(ValueError, match="in use"):
        core.add(request("guided", JSON))
    grammars.finish()
    assert result_of(run(core)["guided"]) == expected(request("guided", JSON), JSON)


def test_an_abort_while_the_grammar_is_compiled() -> None:
    grammars = FakeGrammars(late=True)
    core = guided_core(FakeRunner(), grammars)
    core.add(request("a", JSON))
    core.abort(["a"])
    assert not core.has_work
    grammars.finish()
    assert len(grammars.made) == 1  # for the next request that needs it
    assert core.step() == []
    assert not core.has_work


def test_a_grammar_spec_that_cannot_be_compiled() -> None:
    grammars = FakeGrammars(late=True)
    core = guided_core(FakeRunner(), grammars)
    bad = GenerateRequest(
        request_id="bad", prompt_token_ids=PROMPT, sampling=SamplingParams(grammar_spec=GrammarSpec("json", "{"))
    )
    core.add(bad)
    core.add(request("good", JSON))
    grammars.finish()
    outputs = run(core)
    assert outputs["bad"][0].finish_reason == "abort"
    assert "is no structure" in str(outputs["bad"][0].error)
    assert result_of(outputs["good"])[1] == "stop"
    grammars.late = False  # remembered ones are there at once
    with pytest.raises(ValueError, match="is no structure"):
        core.add(bad)


class Prompt(list[int]):
    """Can be watched, as a plain list cannot."""


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("error", [ValueError("it is no structure"), MemoryError("none left")])
def test_one_failure_does_not_keep_all_whom_it_refused(late: bool, error: Exception) -> None:
    future: Future[Grammar] = Future()

    class Failing:
        def compile(self, spec: GrammarSpec) -> Future[Grammar]:
            return future

    core = make_core(FakeRunner(), grammars=Failing())
    if not late:
        future.set_exception(error)
    prompts = []
    says = []
    for index in range(20):
        prompt = Prompt(PROMPT)
        prompts.append(weakref.ref(prompt))
        try:
            core.add(request(str(index), JSON, prompt))
        except ValueError as refusal:
            says.append(str(refusal))
        del prompt
    if late:
        future.set_exception(error)
        says = [str(output.error) for output in core.step()]
    assert len(says) == 20
    assert all(str(error) in each for each in says)
    assert not core.has_work
    gc.collect()
    assert not any(prompt() for prompt in prompts)
    assert error.__traceback__ is None


def test_what_can_never_run_is_refused_before_it_is_compiled() -> None:
    grammars = FakeGrammars(late=True)
    core = guided_core(FakeRunner(num_blocks=2), grammars)
    with pytest.raises(ValueError, match="KV cache"):
        core.add(request("a", JSON, [1] * 40))
    assert grammars.pending == []


def test_forced_tokens_are_no_cached_part_of_the_prompt() -> None:
    core = guided_core(FakeRunner())
    places = [[11]] * 40 + [ANY, []]
    counts = []
    for name in ("first", "second"):
        core.add(request(name, places, prompt=list(range(3, 23))))
        outputs = run(core)[name]
        counts.append([output.cached_tokens for output in outputs if output.cached_tokens is not None])
    assert counts == [[0], [20]]
