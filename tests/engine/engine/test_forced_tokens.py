"""Forced tokens beside other requests: how many a step takes, and where they stand in it."""

from __future__ import annotations

import pytest
from engine_support.fake_beams import beams_alone
from engine_support.fake_core import EOS, make_core
from engine_support.fake_grammar import FakeGrammar, FakeGrammars, grammar_spec_of
from engine_support.fake_runner import FakeRunner, tokens_alone
from engine_support.sched_invariants import check_invariants

from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.budget.prefill import PrefillBudget
from blade_llm.scheduling.chunks import MAX_FORCED_TOKENS_BESIDE_OTHERS

ANY = list(range(3, 40))
LONG = [ANY, *[[40 + index] for index in range(50)], ANY, ANY]
"""Fifty forced tokens, for which no step has been measured."""


def message(name: str, places: list[list[int]] | None, **sampling: object) -> GenerateRequest:
    values = {"max_tokens": 60, "temperature": 0.8, "seed": 3, "ignore_eos": True, **sampling}
    spec = None if places is None else grammar_spec_of(places)
    return GenerateRequest(
        request_id=name,
        prompt_token_ids=[sum(map(ord, name)) % 90, 6, 7],
        sampling=SamplingParams(grammar_spec=spec, **values),  # type: ignore[arg-type]
    )


def run(core: EngineCore) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    for _ in range(500):
        if not core.has_work:
            return tokens
        for output in core.step():
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
        check_invariants(core.scheduler)
    raise AssertionError("it does not end")


def expected(each: GenerateRequest, places: list[list[int]] | None) -> list[int]:
    grammar = None if places is None else FakeGrammar(places)
    return tokens_alone(each.prompt_token_ids, each.sampling, vocab_size=97, eos_token_ids=(EOS,), grammar=grammar)[0]


@pytest.mark.parametrize("late", [False, True])
def test_alone_forced_tokens_take_one_step(late: bool) -> None:
    runner = FakeRunner(late=late)
    core = make_core(runner, grammars=FakeGrammars())
    core.add(message("a", LONG))
    assert run(core)["a"] == expected(message("a", LONG), LONG)
    assert max(chunk.count for plan in runner.plans for chunk in plan.chunks) >= 50


@pytest.mark.parametrize("late", [False, True])
def test_others_wait_for_a_part_of_the_forced_tokens_only(late: bool) -> None:
    runner = FakeRunner(late=late)
    core = make_core(runner, grammars=FakeGrammars(), clock=lambda: 0.0)
    core.add(message("free", None))
    core.add(message("a", LONG))
    tokens = run(core)
    assert tokens == {"a": expected(message("a", LONG), LONG), "free": expected(message("free", None), None)}
    longest = [max(chunk.count for chunk in plan.chunks) for plan in runner.plans if plan.token_updates]
    assert longest == [MAX_FORCED_TOKENS_BESIDE_OTHERS]
    rest = [chunk for plan in runner.plans for chunk in plan.chunks if chunk.request_id == "a" and chunk.start > 4]
    assert sum(chunk.count for chunk in rest) >= 50 - MAX_FORCED_TOKENS_BESIDE_OTHERS
    assert len([chunk for chunk in rest if chunk.count > 1]) > 1  # in parts, by the budget


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("budget", [24, 128])
def test_forced_tokens_stand_behind_single_tokens_and_each_gets_its_own(late: bool, budget: int) -> None:
    """The runner checks the order; masks, log-probabilities, beams and samples have to follow it."""
    runner = FakeRunner(late=late, max_num_seqs=12)
    core = make_core(runner, grammars=FakeGrammars(), max_batch_tokens=budget)
    keys = [ANY, [41], [42], [43], [44], ANY, [45], [46], [47], [48], ANY, [49], [50], [51], [52], ANY]
    narrow = [[3, 4], [5, 6], [7, 8]] * 8
    guided = {"first": keys, "narrow": narrow, "second": keys, "free": None, "last": keys}
    messages = {name: message(name, places) for name, places in guided.items()}
    beams = message("beams", None, beam_width=3, max_tokens=20, ignore_eos=False)
    for each in messages.values():
        core.add(each)
        if each.request_id == "narrow":
            core.add(beams)
    tokens = run(core)
    for name, each in messages.items():
        assert tokens[name] == expected(each, guided[name])
    best = beams_alone(beams.prompt_token_ids, beams.sampling, vocab_size=97, eos_token_ids=(EOS,))
    assert tokens["beams"] == best[0][0]
    mixed = [plan for plan in runner.plans if plan.token_updates and any(chunk.count == 1 for chunk in plan.chunks)]
    assert mixed


def test_a_chunk_beside_forced_tokens_fills_the_graph_that_is_left() -> None:
    sizes, places = (16, 32, 64), [ANY, *[[40 + index] for index in range(6)]] * 8
    runner = FakeRunner()
    core = make_core(runner, grammars=FakeGrammars(), clock=lambda: 0.0)
    core.scheduler.budget = PrefillBudget(graph_sizes=sizes)
    core.add(message("guided", places))
    core.add(message("free", None))
    for _ in range(3):
        core.step()
    long = GenerateRequest(request_id="long", prompt_token_ids=[7] * 220, sampling=SamplingParams(max_tokens=1))
    core.add(long)
    run(core)
    forced = [
        plan.num_tokens
        for plan in runner.plans
        if plan.token_updates and any(chunk.request_id == "long" and not chunk.sample for chunk in plan.chunks)
    ]
    assert forced
    assert set(forced) <= set(sizes)
