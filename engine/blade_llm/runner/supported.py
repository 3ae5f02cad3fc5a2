"""Asserts that a plan holds nothing that the runner does not carry out yet. Ignored, it would give a request the
tokens of another model, or of another prompt."""

from __future__ import annotations

from blade_llm.scheduling.plan import StepPlan


def assert_supported(plan: StepPlan, adapters: bool = False, stages: bool = False, images: bool = False) -> None:
    """Raise AssertionError for adapters, pipeline stages and images, without these."""
    assert stages or plan.pipeline_stages == 1, (
        f"the runner computes in one pipeline stage, not in {plan.pipeline_stages}"
    )
    for new in plan.new_requests:
        assert adapters or new.adapter_slot == 0, (
            f"the runner has no adapters: {new.request_id} needs slot {new.adapter_slot}"
        )
        assert images or not new.images, f"the runner takes no images: {new.request_id} has some"
