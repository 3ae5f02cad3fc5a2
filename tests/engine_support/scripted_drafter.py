"""A drafter that always proposes as many draft tokens as there is room for, and counts what it is told."""

from __future__ import annotations

from collections.abc import Sequence

from blade_llm.scheduling.drafting import Draft, StepRoom, StepTokens
from blade_llm.scheduling.request import Request


class ScriptedDrafter:
    """``most`` draft tokens for each decode without a grammar; the runner makes them."""

    past_end = False

    def __init__(self, most: int) -> None:
        self.most = most
        self.observed: list[tuple[str, int, int]] = []
        self.steps: list[StepTokens] = []
        self.forgotten: list[str] = []
        self.has_failed = False

    def active(self, num_running: int) -> bool:
        return bool(self.most) and not self.has_failed

    def propose(
        self, requests: Sequence[Request], rooms: Sequence[int], most: StepRoom, other_tokens: int
    ) -> Sequence[Draft]:
        drafts, left = [], min(most)
        for request, room in zip(requests, rooms, strict=True):
            count = 0 if request.grammar is not None else min(self.most, room, left)
            left -= count
            drafts.append(Draft(count))
        return drafts

    def observe(self, request: Request, drafted: int, accepted: int, window: Sequence[int] = ()) -> None:
        self.observed.append((request.request_id, drafted, accepted))

    def observe_step(self, step: StepTokens, seconds: float, host: float) -> None:
        self.steps.append(step)

    def failed(self) -> None:
        self.has_failed = True

    def forget(self, request: Request) -> None:
        self.forgotten.append(request.request_id)
