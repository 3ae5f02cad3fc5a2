"""Several ranks that get the driver's plans as bytes and must all sample the same."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from blade_llm.sampling.masks import DraftMasks, TokenMasks
from blade_llm.scheduling.plan import PendingForward, PendingStep, Runner, StepPlan, StepResult


class RankedStep:
    def __init__(self, steps: Sequence[PendingStep]) -> None:
        self._steps = steps

    def done(self) -> bool:
        return all(step.done() for step in self._steps)

    def result(self) -> StepResult:
        first, *others = [msgspec.msgpack.encode(step.result()) for step in self._steps]
        assert all(other == first for other in others), "ranks sampled different tokens"
        return msgspec.msgpack.decode(first, type=StepResult)


class RankedForward:
    def __init__(self, forwards: Sequence[PendingForward]) -> None:
        self.forwards = forwards


class Ranks:
    """Implements :class:`blade_llm.scheduling.plan.Runner` with one runner a rank, each with tables of its own."""

    def __init__(self, runners: Sequence[Runner]) -> None:
        self._runners = runners
        self.longest_plan = 0
        """Bytes."""

    def launch_forward(self, plan: StepPlan, draft_masks: DraftMasks | None = None) -> RankedForward:
        message = msgspec.msgpack.encode(plan)
        self.longest_plan = max(self.longest_plan, len(message))
        plans = [msgspec.msgpack.decode(message, type=StepPlan) for _ in self._runners]
        assert all(decoded == plan for decoded in plans)
        return RankedForward(
            [runner.launch_forward(decoded) for runner, decoded in zip(self._runners, plans, strict=True)]
        )

    def draft_tokens(self, forward: PendingForward) -> dict[int, list[int]]:
        return {}

    def release_cache(self) -> None:
        for runner in self._runners:
            runner.release_cache()

    def launch_sampling(self, forward: PendingForward, masks: TokenMasks | None = None) -> RankedStep:
        assert isinstance(forward, RankedForward)
        pairs = zip(self._runners, forward.forwards, strict=True)
        return RankedStep([runner.launch_sampling(forward, masks) for runner, forward in pairs])
