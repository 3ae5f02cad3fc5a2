"""When a launched step counts as done: on a GPU when the device is, whether or not the step sampled tokens."""

from __future__ import annotations

import tracemalloc

import pytest
import torch

from blade_llm.runner.pending import LaunchedStep
from blade_llm.sampling.parameters import TokenLogprobs
from blade_llm.sampling.sampler import SampledLogprobs, SamplerOutput
from blade_llm.scheduling.plan import StepResult


class Event:
    """A CUDA event on a device that is busy until somebody waits."""

    def __init__(self) -> None:
        self.recorded = self.reached = False

    def record(self) -> None:
        self.recorded = True

    def query(self) -> bool:
        assert self.recorded
        return self.reached

    def synchronize(self) -> None:
        assert self.recorded
        self.reached = True


@pytest.mark.parametrize("tokens", [None, [5, 7]])
def test_a_step_on_a_gpu_is_done_when_the_device_is(tokens: list[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    sampled = None if tokens is None else SamplerOutput(torch.tensor(tokens), None)
    step = LaunchedStep(sampled, torch.device("cuda"))
    assert not step.done()
    assert step.result() == StepResult(tokens=[[token] for token in tokens or []], logprobs=[None] * len(tokens or []))
    assert step.done()


def test_a_step_on_a_cpu_is_done_when_it_is_launched() -> None:
    assert LaunchedStep(None, torch.device("cpu")).done()
    assert LaunchedStep(SamplerOutput(torch.tensor([3]), None), torch.device("cpu")).done()


def test_a_slot_that_wants_many_logprobs_costs_the_others_nothing() -> None:
    slots, most = 64, 4096
    values = torch.arange(slots * most, dtype=torch.float32).view(slots, most)
    logprobs = SampledLogprobs(list(range(slots)), [2] * (slots - 1) + [most], values[:, 0], values, values.long() % 7)
    step = LaunchedStep(SamplerOutput(torch.zeros(slots, dtype=torch.int64), logprobs), torch.device("cpu"))
    tracemalloc.start()
    try:
        result = step.result()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.logprobs[1] == [TokenLogprobs(4096.0, (1, 2), (4096.0, 4097.0))]
    (last,) = result.logprobs[-1] or []
    assert len(last.token_ids) == len(last.logprobs) == most
    assert peak < 1 << 20  # that is one slot's; all of them would be 16 MiB
