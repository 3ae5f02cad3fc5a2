"""When a launched step counts as done: on a GPU when the device is, whether or not the step drew tokens."""

from __future__ import annotations

import tracemalloc

import pytest
import torch

from blade_llm.runner.pending import LaunchedStep
from blade_llm.sampling.parameters import TokenLogprobs
from blade_llm.sampling.sampler import Drawn, DrawnLogprobs
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
    drawn = None if tokens is None else Drawn(torch.tensor(tokens), None)
    step = LaunchedStep(drawn, torch.device("cuda"))
    assert not step.done()
    assert step.result() == StepResult(tokens=[[token] for token in tokens or []], logprobs=[None] * len(tokens or []))
    assert step.done()


def test_a_step_on_a_cpu_is_done_when_it_is_launched() -> None:
    assert LaunchedStep(None, torch.device("cpu")).done()
    assert LaunchedStep(Drawn(torch.tensor([3]), None), torch.device("cpu")).done()


def test_a_row_that_asks_for_many_tokens_costs_the_others_nothing() -> None:
    rows, most = 64, 4096
    values = torch.arange(rows * most, dtype=torch.float32).view(rows, most)
    asked = DrawnLogprobs(list(range(rows)), [2] * (rows - 1) + [most], values[:, 0], values, values.long() % 7)
    step = LaunchedStep(Drawn(torch.zeros(rows, dtype=torch.int64), asked), torch.device("cpu"))
    tracemalloc.start()
    try:
        result = step.result()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.logprobs[1] == [TokenLogprobs(4096.0, (1, 2), (4096.0, 4097.0))]
    (last,) = result.logprobs[-1] or []
    assert len(last.token_ids) == len(last.logprobs) == most
    assert peak < 1 << 20  # that is one row's; all of them would be 16 MiB
