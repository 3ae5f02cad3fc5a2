"""What is known of a request when it has ended: what the access log and the tracer tell."""

from collections.abc import Callable
from dataclasses import dataclass

from blade_router.client import Client
from blade_router.errors import header_of
from blade_router.http.head import RawRequest
from blade_router.request import ClientRequest

MOST_PATH = 1024
"""Bytes of a path that are told: what waits to be written is bounded in number only."""


@dataclass(slots=True)
class Outcome:
    """One request that has ended."""

    raw: RawRequest
    client: Client
    request: ClientRequest | None
    """None: it was refused before it could be read as one."""
    key: str
    """Name of the key it came with; empty without one."""
    status: int
    started: float
    ended: float
    """``time.perf_counter``."""

    def told(self, name: bytes) -> str:
        """A header the router added to the answer; empty without one."""
        ours = self.request.ours if self.request is not None else ()
        return header_of(ours, name).decode("latin-1")

    @property
    def first_byte(self) -> float | None:
        """Seconds to the first byte of the answer; None when there was none."""
        return self.client.began - self.started if self.client.began else None


Observe = Callable[[Outcome], None]
