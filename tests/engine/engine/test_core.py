"""The loop around scheduler and runner: what is delivered when, on a synchronous and on an asynchronous device."""

import pytest
from engine_support.fake_core import EOS, make_core
from engine_support.fake_runner import FakeForward, FakePendingStep, FakeRunner, tokens_alone
from engine_support.sched_invariants import check_invariants

from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest, RequestOutput
from blade_llm.sampling.masks import DraftMasks, TokenMasks
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.plan import StepPlan
from blade_llm.scheduling.request import RequestRefusedError


def request(name: str, prompt: list[int], max_tokens: int = 20, *, ignore_eos: bool = True) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0, seed=0, ignore_eos=ignore_eos)
    return GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling)


def prompt_of(length: int, start: int = 0) -> list[int]:
    return [(start + 7 * i) % 91 for i in range(length)]


def run(core: EngineCore) -> dict[str, list[RequestOutput]]:
    """Step until nothing is left."""
    outputs: dict[str, list[RequestOutput]] = {}
    for _ in range(5000):
        if not core.has_work:
            return outputs
        for output in core.step():
            outputs.setdefault(output.request_id, []).append(output)
        check_invariants(core.scheduler)
    raise AssertionError("it does not end")


def tokens(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def alone(message: GenerateRequest, runner: FakeRunner) -> list[int]:
    return tokens_alone(
        message.prompt_token_ids,
        message.sampling,
        vocab_size=runner.vocab_size,
        eos_token_ids=(EOS,),
        max_model_len=runner.max_model_len,
    )[0]


@pytest.mark.parametrize("late", [False, True])
def test_64_requests_of_mixed_lengths_get_the_tokens_they_get_alone(late: bool) -> None:
    runner = FakeRunner(num_blocks=200, max_num_seqs=24, late=late)
    core = make_core(runner)
    messages = [
        request(str(i), prompt_of(1 + 13 * i % 150, i % 5), 1 + 11 * i % 60, ignore_eos=i % 3 > 0) for i in range(64)
    ]
    for message in messages:
        core.add(message)
    outputs = run(core)
    for message in messages:
        assert tokens(outputs[message.request_id]) == alone(message, runner)
    assert core.scheduler.stats().kv_blocks_free == 200


@pytest.mark.parametrize("late", [False, True])
def test_40_blocks_force_preemption_with_equal_tokens(late: bool) -> None:
    runner = FakeRunner(num_blocks=40, max_num_seqs=16, max_model_len=500, late=late)
    core = make_core(runner)
    messages = [request(str(i), prompt_of(30 + i, i), 90) for i in range(16)]
    for message in messages:
        core.add(message)
    outputs = run(core)
    assert core.scheduler.stats().preemptions_total > 0
    last = [outputs[message.request_id][-1] for message in messages]
    assert sum(len(output.preempted_after) for output in last) == core.scheduler.stats().preemptions_total
    assert all(output.preempted_after == sorted(output.preempted_after) for output in last)
    for message in messages:
        assert tokens(outputs[message.request_id]) == alone(message, runner)


def test_on_a_synchronous_device_a_step_returns_its_own_tokens() -> None:
    core = make_core(FakeRunner())
    core.add(request("a", [1, 2, 3], max_tokens=2))
    assert len(core.step()) == 1
    assert core.step()[0].finish_reason == "length"
    assert not core.has_work


def test_on_an_asynchronous_device_the_next_forward_is_launched_before_the_tokens_arrive() -> None:
    runner = FakeRunner(late=True)
    core = make_core(runner)
    core.add(request("a", [1, 2, 3], max_tokens=3))
    assert core.step() == []
    assert [len(tokens([output])) for output in core.step()] == [1]
    assert runner.num_steps == 2
    core.step()
    assert runner.num_steps == 3
    assert core.step()[0].finish_reason == "length"
    assert runner.num_steps == 3  # nothing beyond max_tokens was computed


def test_results_that_are_there_do_not_delay_the_next_launch() -> None:
    runner = FakeRunner(late=True)
    core = make_core(runner)
    core.add(request("a", [1, 2, 3], max_tokens=9))
    core.step()
    runner.last_step.finish()
    assert [output.token_ids for output in core.step()] == [alone(request("a", [1, 2, 3]), runner)[:1]]
    assert runner.num_steps == 2
    runner.last_step.finish()
    core.abort(["a"])
    assert core.step() == []  # nothing to launch: what is in flight is fetched and thrown away
    assert not core.has_work


def test_without_overlap_nothing_is_launched_blindly() -> None:
    runner = FakeRunner(late=True)
    core = make_core(runner, overlap=False)
    core.add(request("a", [1, 2, 3], max_tokens=2))
    assert [len(core.step()) for _ in range(2)] == [1, 1]
    assert runner.num_steps == 2
    assert not core.has_work


def test_a_late_stop_costs_a_token_and_changes_nothing() -> None:
    runner = FakeRunner(late=True, vocab_size=7)
    core = make_core(runner)
    messages = [request(str(i), prompt_of(5, i), 60, ignore_eos=False) for i in range(8)]
    for message in messages:
        core.add(message)
    outputs = run(core)
    stopped = [name for name, each in outputs.items() if each[-1].finish_reason == "stop"]
    assert stopped
    for message in messages:
        assert tokens(outputs[message.request_id]) == alone(message, runner)
    assert all(outputs[name][-1].stop_token_id == EOS for name in stopped)


@pytest.mark.parametrize("suffix", [0, 1, 40])
def test_a_repeated_prefix_of_1000_tokens_is_computed_once(suffix: int) -> None:
    runner = FakeRunner(num_blocks=256, max_model_len=2048)
    core = make_core(runner)
    prefix = prompt_of(1000)
    core.add(request("a", prefix, max_tokens=1))
    run(core)
    before = runner.num_computed
    again = request("b", prefix + prompt_of(suffix, 3), max_tokens=1)
    core.add(again)
    outputs = run(core)["b"]
    assert runner.num_computed - before <= 16 + suffix
    assert outputs[0].cached_tokens == 992
    assert tokens(outputs) == alone(again, runner)
    state = core.state(epoch="e", sequence=1, draining=False)
    assert (state.prompt_tokens_total, state.cached_tokens_total) == (2000 + suffix, 992)


def test_who_comes_in_the_middle_of_a_long_output_does_not_wait_for_its_end() -> None:
    core = make_core(FakeRunner(max_model_len=900))
    core.add(request("long", prompt_of(100), max_tokens=500))
    for _ in range(50):
        core.step()
    core.add(request("short", prompt_of(300, 1), max_tokens=3))
    seen = [output.request_id for _ in range(100) for output in core.step()]
    assert "short" in seen
    assert core.scheduler.stats().running >= 1


@pytest.mark.parametrize("late", [False, True])
def test_an_abort_frees_blocks_at_once_and_silences_the_request(late: bool) -> None:
    core = make_core(FakeRunner(late=late))
    for name in ("a", "b"):
        core.add(request(name, prompt_of(40), max_tokens=300))
    for _ in range(5):
        core.step()
    core.abort(["a", "b"])
    core.abort(["a", "never seen"])
    assert core.state(epoch="e", sequence=0, draining=False).kv_blocks_free == 64
    assert run(core) == {}
    assert not core.has_work


def test_the_state_counts_running_and_waiting() -> None:
    runner = FakeRunner(max_num_seqs=2)
    core = make_core(runner)
    for name in ("a", "b", "c"):
        core.add(request(name, prompt_of(20), max_tokens=10))
    core.step()
    state = core.state(epoch="e", sequence=7, draining=True)
    assert (state.running, state.waiting, state.generation_tokens_total) == (2, 1, 2)
    assert (state.epoch, state.sequence, state.draining, state.ready) == ("e", 7, True, True)
    assert state.kv_blocks_total == 64
    assert state.kv_blocks_free == 60
    assert core.ready(state).max_model_len == runner.max_model_len


def test_a_refusal_disturbs_nobody() -> None:
    runner = FakeRunner(num_blocks=4, max_model_len=500)
    core = make_core(runner)
    good = request("good", prompt_of(20))
    core.add(good)
    with pytest.raises(RequestRefusedError, match="do not fit into the KV cache"):
        core.add(request("bad", prompt_of(100)))
    assert tokens(run(core)["good"]) == alone(good, runner)


def test_exceptions_of_the_runner_pass_through() -> None:
    class BrokenRunner(FakeRunner):
        def launch_forward(self, plan: StepPlan, draft_masks: DraftMasks | None = None) -> FakeForward:
            raise MemoryError("device")

    core = make_core(BrokenRunner())
    core.add(request("a", [1]))
    with pytest.raises(MemoryError, match="device"):
        core.step()


class TimedRunner(FakeRunner):
    """Advances a clock: 10 ms a step and 0.1 ms a prefill token."""

    now = 0.0

    def clock(self) -> float:
        return self.now

    def launch_sampling(self, forward: object, masks: TokenMasks | None = None) -> FakePendingStep:
        prefill = sum(chunk.count for chunk in self.plans[-1].chunks if chunk.count > 1)
        self.now += 0.010 + 0.0001 * prefill
        return super().launch_sampling(forward, masks)


def test_a_long_prompt_does_not_stall_the_tokens_of_others() -> None:
    runner = TimedRunner(num_blocks=512, max_model_len=4096)
    core = make_core(runner, max_batch_tokens=2048, clock=runner.clock)
    core.add(request("warm up", prompt_of(500, 9), max_tokens=5))
    run(core)
    core.add(request("running", prompt_of(50), max_tokens=200))
    for _ in range(5):
        core.step()
    core.add(request("long", prompt_of(3000, 1), max_tokens=5))
    gaps, done = [], False
    while not done:
        before = runner.now
        outputs = core.step()
        gaps.append(runner.now - before)
        done = any(output.request_id == "long" for output in outputs)
        assert any(output.request_id == "running" for output in outputs), "a step without a token for the running one"
    assert max(gaps) < 0.020
    assert len(gaps) < 60  # 3000 tokens at 80 or so a step: the room is used
