"""Several samples of one prompt: what they share, who takes over from whom, and what happens when not all fit."""

from __future__ import annotations

import msgspec
import pytest
from engine_support.fake_core import EOS, make_core, run
from engine_support.fake_runner import FakeRunner, tokens_alone
from engine_support.sched_invariants import check_invariants

from blade_llm.engine.messages import GenerateRequest, RequestOutput
from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.parameters import SamplingParams

BLOCK = 16


def prompt_of(length: int, start: int = 0) -> list[int]:
    return [(start + 7 * i) % 91 for i in range(length)]


def samples(
    prompt: list[int], count: int, max_tokens: int = 20, *, name: str = "s", pooling: str = "", **sampling: object
) -> GenerateRequest:
    values = {"temperature": 0.8, "seed": 7, "ignore_eos": True, **sampling}
    return GenerateRequest(
        request_id=f"{name}0",
        sibling_ids=[f"{name}{i}" for i in range(1, count)],
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=max_tokens, **values),  # type: ignore[arg-type]
        pooling=pooling,  # type: ignore[arg-type]
    )


def tokens(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def check(message: GenerateRequest, outputs: dict[str, list[RequestOutput]], *, without: tuple[str, ...] = ()) -> None:
    for index, name in enumerate((message.request_id, *message.sibling_ids)):
        if name not in without:
            expected = tokens_alone(
                message.prompt_token_ids, message.sampling, vocab_size=97, eos_token_ids=(EOS,), sample_index=index
            )
            assert tokens(outputs[name]) == expected[0]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 32, 33, 100])
@pytest.mark.parametrize("max_tokens", [1, 20])
def test_a_prompt_is_computed_once(late: bool, prefix_cache: bool, length: int, max_tokens: int) -> None:
    runner = FakeRunner(num_blocks=200, late=late)
    core = make_core(runner, enable_prompt_cache=prefix_cache)
    message = samples(prompt_of(length), 8, max_tokens)
    core.add(message)
    outputs = run(core)
    check(message, outputs)
    assert len({tuple(tokens(outputs[f"s{i}"])) for i in range(8)}) > 1
    prefill = sum(chunk.count for plan in runner.plans for chunk in plan.chunks if chunk.start < length)
    assert prefill == length + 7  # each computes the last token
    assert outputs["s0"][0].cached_tokens == 0
    assert all(outputs[f"s{i}"][0].cached_tokens is None for i in range(1, 8))
    state = core.state(epoch="e", sequence=0, draining=False)
    assert state.prompt_tokens_total == length


def test_full_blocks_are_shared_and_a_partial_one_copied() -> None:
    runner = FakeRunner()
    core = make_core(runner)
    core.add(samples(prompt_of(40), 4))
    for _ in range(3):  # the second measures a decode alone
        core.step()
    plan = runner.plans[2]
    assert len(plan.block_copies) == 3
    assert len(plan.new_requests) == 3
    tables = [update.blocks for update in (runner.plans[0].block_updates + plan.block_updates)]
    assert len({tuple(table[:2]) for table in tables}) == 1
    assert len({table[2] for table in tables}) == 4
    assert core.scheduler.stats().kv_blocks_free == 64 - 2 - 4


def test_the_last_sample_keeps_the_original() -> None:
    runner = FakeRunner()
    core = make_core(runner, enable_prompt_cache=False)
    core.add(samples(prompt_of(40), 2, max_tokens=1))
    outputs = run(core)
    assert [plan.block_copies for plan in runner.plans] == [[], []]
    assert {name: len(each) for name, each in outputs.items()} == {"s0": 1, "s1": 1}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("steps", range(9))
@pytest.mark.parametrize("gone", [("s0",), ("s0", "s2"), ("s1", "s2", "s3"), ("s3",), ("s0", "s1", "s2", "s3")])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_the_others_go_on_when_some_leave_at_any_step(
    late: bool, steps: int, gone: tuple[str, ...], prefix_cache: bool
) -> None:
    """Before, in and after the prefill, which takes four steps."""
    runner = FakeRunner(late=late)
    core = make_core(runner, max_batch_tokens=16, enable_prompt_cache=prefix_cache)
    message = samples(prompt_of(61), 4)
    core.add(message)
    outputs: dict[str, list[RequestOutput]] = {}
    for _ in range(steps):
        for output in core.step():
            outputs.setdefault(output.request_id, []).append(output)
    core.abort(gone)
    check_invariants(core.scheduler)
    if len(gone) == 4:
        assert core.scheduler.stats().kv_blocks_free == 64
    run(core, outputs)
    check(message, outputs, without=gone)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_more_samples_than_slots_come_one_after_another(late: bool, slots: int) -> None:
    runner = FakeRunner(max_num_seqs=slots, late=late)
    core = make_core(runner, enable_prompt_cache=False)
    message = samples(prompt_of(50), 7)
    core.add(message)
    check(message, run(core))
    prefill = sum(chunk.count for plan in runner.plans for chunk in plan.chunks if chunk.start < 50)
    assert prefill == 50 + 6


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("blocks", [5, 6, 9])
def test_more_samples_than_blocks(late: bool, prefix_cache: bool, blocks: int) -> None:
    runner = FakeRunner(num_blocks=blocks, late=late)
    core = make_core(runner, enable_prompt_cache=prefix_cache)
    message = samples(prompt_of(40), 6, max_tokens=41)  # 80 positions: five blocks
    other = samples(prompt_of(20, 3), 3, max_tokens=40, name="t")
    core.add(message)
    core.add(other)
    outputs = run(core)
    check(message, outputs)
    check(other, outputs)


def test_others_are_served_while_samples_wait_for_their_prompt() -> None:
    runner = FakeRunner()
    core = make_core(runner)
    core.add(samples(prompt_of(20), 3))
    core.add(samples(prompt_of(5, 2), 1, name="t"))
    core.step()
    assert [chunk.request_id for chunk in runner.plans[0].chunks] == ["s0", "t0"]


def test_what_does_not_go_together_is_refused() -> None:
    core = make_core(FakeRunner(num_blocks=4))
    with pytest.raises(ValueError, match="sibling_ids does not go together with pooling"):
        core.add(samples(prompt_of(4), 2, pooling="last"))
    with pytest.raises(ValueError, match="twice"):
        core.add(msgspec.structs.replace(samples(prompt_of(4), 1), sibling_ids=["s0"]))
    core.add(samples(prompt_of(4), 2))
    with pytest.raises(ValueError, match="in use"):
        core.add(samples(prompt_of(4), 1))
    core.abort(["s0", "s1"])
    assert not core.has_work
    with pytest.raises(ValueError, match="60 prompt tokens and up to 20 output tokens do not fit into the KV cache"):
        core.add(samples(prompt_of(60), 2))
    assert not core.has_work


@pytest.mark.parametrize(
    ("count", "options", "says"),
    [
        (1, {"beam_width": 1}, "beam_width is 1; give at least 2"),
        (3, {"beam_width": 2}, "beam_width is 2, but n asks for 3"),
        (1, {"beam_width": 65}, "beam_width is 65, but max_num_seqs is 64"),
        (1, {"beam_width": 2, "grammar_spec": GrammarSpec("regex", "a")}, "beam_width does not go .* structure"),
        (1, {"beam_width": 2, "logit_bias": {1: 1.0}}, "beam_width does not go .* logit_bias"),
        (1, {"beam_width": 2, "pooling": "last"}, "beam_width does not go .* pooling"),
        (2, {"beam_width": 8, "max_tokens": 200}, r"beam_width 8 with 20 prompt tokens .* 105 KV blocks, .* are 64"),
    ],
)
def test_beams_that_cannot_run_are_refused(count: int, options: dict[str, object], says: str) -> None:
    core = make_core(FakeRunner())
    with pytest.raises(ValueError, match=says):
        core.add(samples(prompt_of(20), count, **options))  # type: ignore[arg-type]
    assert not core.has_work


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("steps", range(8))
def test_beams_are_gone_when_every_output_is_aborted(late: bool, steps: int) -> None:
    core = make_core(FakeRunner(late=late), max_batch_tokens=16)
    core.add(samples(prompt_of(40), 3, beam_width=4))
    for _ in range(steps):
        core.step()
    core.abort(["s1"])
    assert core.has_work
    core.abort(["s0", "s2", "s1"])
    assert core.scheduler.stats().kv_blocks_free == 64
    assert run(core) == {}


def test_an_aborted_output_is_left_out() -> None:
    whole, part = make_core(FakeRunner()), make_core(FakeRunner())
    for core in (whole, part):
        core.add(samples(prompt_of(40), 3, beam_width=4))
        core.step()
    part.abort(["s1"])
    expected, outputs = run(whole), run(part)
    assert set(outputs) == {"s0", "s2"}
    assert outputs["s2"] == expected["s2"]
