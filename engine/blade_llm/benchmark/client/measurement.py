"""What is known about one request after it has ended, well or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a request did not succeed."""

    kind: str
    """Failures of one kind are counted together: ``HTTP 429``, ``stream cut``."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One request. Times are in seconds of one monotonic clock."""

    due: float
    """When it should have been sent."""
    sent: float
    ended: float
    events: Sequence[float] = ()
    """Arrival of each event that carried text."""
    input_tokens: int = 0
    output_tokens: int = 0
    counted_by_server: bool = False
    """Whether the token counts are the server's ``usage``; otherwise tokens out are the events with text."""
    failure: Failure | None = None

    @property
    def ttft(self) -> float | None:
        """Time to first token: from sending to the first text; None for an empty response."""
        return self.events[0] - self.sent if self.events else None

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None for fewer than two tokens."""
        if self.output_tokens < 2 or len(self.events) < 2:
            return None
        return (self.events[-1] - self.events[0]) / (self.output_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies: times between events with text (an event may carry several tokens)."""
        return [later - earlier for earlier, later in pairwise(self.events)]

    @property
    def e2e(self) -> float:
        """Latency from sending to the end of the response."""
        return self.ended - self.sent

    @property
    def lag(self) -> float:
        """How late the generator was."""
        return self.sent - self.due
