"""What the runner does not carry out yet is an assertion, whatever scheduler made the plan."""

from __future__ import annotations

from typing import Any

import pytest
from engine_support.tiny_models import engine_config, save_model

from blade_llm.runner import build_runner
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.plan import BlockUpdate, NewRequest, ScheduledChunk, StepPlan
from blade_llm.spec.vision.images import ImageSpan


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> TorchRunner:
    folder = tmp_path_factory.mktemp("qwen2")
    save_model(folder, "qwen2", num_hidden_layers=1)
    return build_runner(engine_config(folder))


def plan_of(*, pipeline_stages: int = 1, **new: Any) -> StepPlan:
    """One prompt of three tokens in slot 0."""
    request = NewRequest(0, "r", [5, 6, 7], 3, SamplingParams(seed=0), **new)
    chunk = ScheduledChunk(0, 0, 3, True, "r")
    return StepPlan(0, [chunk], [request], [BlockUpdate(0, 0, [0])], pipeline_stages=pipeline_stages)


def test_a_plan_without_any_of_them_is_carried_out(runner: TorchRunner) -> None:
    result = runner.launch_sampling(runner.launch_forward(plan_of())).result()
    assert [len(tokens) for tokens in result.tokens] == [1]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (plan_of(pipeline_stages=2), "one pipeline stage, not in 2"),
        (plan_of(adapter_slot=3), "no adapters: r needs slot 3"),
        (plan_of(images=(ImageSpan(0, 2, bytes(32), (1, 2, 4)),)), "no images: r has some"),
    ],
    ids=["pipeline stages", "adapter", "images"],
)
def test_what_is_not_carried_out_yet_is_asserted(plan: StepPlan, message: str, runner: TorchRunner) -> None:
    with pytest.raises(AssertionError, match=message):
        runner.launch_forward(plan)
