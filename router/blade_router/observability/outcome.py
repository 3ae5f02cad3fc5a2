"""The outcome of a request, as the access log and the tracer record it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from blade_router.http.client import Client
from blade_router.http.head import RawRequest
from blade_router.request.request import ClientRequest

MAX_PATH_BYTES = 1024
"""Bytes of a path that are recorded: pending records are bounded in number only."""
MAX_MODEL: Final = 256
"""Characters of a model's name that are."""


@dataclass(slots=True)
class Outcome:
    """The outcome of one request."""

    raw: RawRequest
    client: Client
    request: ClientRequest | None
    """None: it was refused before it could be parsed."""
    key: str
    """The name of its API key; empty without one."""
    status: int
    started: float
    ended: float
    """``time.perf_counter``."""

    @property
    def trace_id(self) -> str:
        """The trace it belongs to; empty without one."""
        return self.raw.trace.trace_id.decode("ascii") if self.raw.trace is not None else ""

    @property
    def first_byte(self) -> float | None:
        """Time to first byte in seconds; None without a response."""
        return self.client.began - self.started if self.client.began else None


Observe = Callable[[Outcome], None]
