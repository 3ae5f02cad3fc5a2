"""An asynchronous device on a virtual clock, around any runner.

A launch only joins a queue, which is worked through, in order, when a result that lies behind it is requested. So
nothing the host does before can depend on a token: it does not exist yet. Plans, too, are read only then, long after
the scheduler has gone on; a plan that chunks a list with the scheduler's state would be noticed.

The clock says when the device would have been working: host and device each move it, and gaps are recorded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from blade_llm.sampling.masks import DraftMasks, TokenMasks
from blade_llm.scheduling.plan import PendingForward, PendingStep, Runner, StepPlan, StepResult


class Event(NamedTuple):
    """The host launched something, or requested tokens."""

    kind: Literal["forward", "sampling", "result"]
    step: int


@dataclass(frozen=True)
class LaunchedForward:
    plan: StepPlan


class AwaitedStep:
    """Tokens that are ready at ``ready_at``."""

    def __init__(self, device: AsyncDevice, step: int, ready_at: float) -> None:
        self._device, self._step, self._ready_at = device, step, ready_at

    def done(self) -> bool:
        return self._device.now >= self._ready_at

    def result(self) -> StepResult:
        return self._device.wait(self._step, self._ready_at)


class AsyncDevice:
    """Implements :class:`blade_llm.scheduling.plan.Runner` with another one that works later.

    Args:
        forward_seconds: how long a plan's forward pass takes; divided among ``stages``.
        host_seconds: what the host needs before it launches anything: for a forward pass to schedule it, for a sampling
        to
            deliver the tokens of the step before.
        stages: of a pipeline: each works on another step.
        on_host: the first stage computes on the host's own time, as on a CPU.
        record: keep ``timeline`` and ``idle``, which grow with every step.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        forward_seconds: Callable[[StepPlan], float] = lambda plan: 0.010,
        sampling_seconds: float = 0.0005,
        host_seconds: float = 0.001,
        stages: int = 1,
        on_host: bool = False,
        record: bool = True,
    ) -> None:
        self.now = 0.0
        self.timeline: list[Event] = []
        self.idle: list[tuple[int, float]] = []
        """(step, seconds): so long the first stage had nothing to do before this step, the first one left out."""
        self.undelivered: dict[int, StepPlan] = {}
        self._record = record
        self._runner = runner
        self._forward_seconds = forward_seconds
        self._sampling_seconds = sampling_seconds
        self._host_seconds = host_seconds
        self._busy_until = [0.0] * stages
        self._on_host = on_host
        self.worked = 0.0
        """Seconds that each stage has worked."""
        self._queue: deque[Callable[[], None]] = deque()
        self._sampled: dict[int, PendingStep] = {}

    def clock(self) -> float:
        return self.now

    def launch_forward(self, plan: StepPlan, draft_masks: DraftMasks | None = None) -> LaunchedForward:
        self.now += self._host_seconds
        self._note("forward", plan.step)
        gap = self.now - self._busy_until[0]
        if gap > 1e-9 and plan.step and self._record:
            self.idle.append((plan.step, gap))
        if len(self._busy_until) > 1:
            self._check_tokens_are_there(plan)
        self.undelivered[plan.step] = plan
        arrived = self.now
        for stage, busy_until in enumerate(self._busy_until):
            arrived = max(arrived, busy_until) + self._forward_seconds(plan) / len(self._busy_until)
            self._busy_until[stage] = arrived
        self.worked += self._forward_seconds(plan) / len(self._busy_until)
        if self._on_host:
            self.now = self._busy_until[0]
        return LaunchedForward(plan)

    def draft_tokens(self, forward: PendingForward) -> dict[int, list[int]]:
        return {}

    def release_cache(self) -> None:
        self._runner.release_cache()

    def launch_sampling(self, forward: PendingForward, masks: TokenMasks | None = None) -> AwaitedStep:
        assert isinstance(forward, LaunchedForward)
        plan = forward.plan
        self.now += self._host_seconds
        self._note("sampling", plan.step)
        self._busy_until[-1] = max(self.now, self._busy_until[-1]) + self._sampling_seconds

        def work() -> None:
            self._sampled[plan.step] = self._runner.launch_sampling(self._runner.launch_forward(plan), masks)

        self._queue.append(work)
        return AwaitedStep(self, plan.step, self._busy_until[-1])

    def wait(self, step: int, ready_at: float) -> StepResult:
        """Let the device work until the tokens of ``step`` are there."""
        self._note("result", step)
        self.now = max(self.now, ready_at)
        while step not in self._sampled:
            self._queue.popleft()()
        del self.undelivered[step]
        return self._sampled.pop(step).result()

    def _note(self, kind: Literal["forward", "sampling", "result"], step: int) -> None:
        if self._record:
            self.timeline.append(Event(kind, step))

    def _check_tokens_are_there(self, plan: StepPlan) -> None:
        """The first stage has no token that the last one has not sampled yet."""
        awaited = {
            chunk.request_id for earlier in self.undelivered.values() for chunk in earlier.chunks if chunk.sample
        }
        new = {new.request_id for new in plan.new_requests}  # after an abort an id may be used again
        assert awaited.isdisjoint({chunk.request_id for chunk in plan.chunks} - new), "its token is not sampled yet"
