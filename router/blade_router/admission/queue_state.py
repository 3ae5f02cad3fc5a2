"""The state of a request queue, as signals and metrics show it."""

import msgspec


class QueueState(msgspec.Struct, frozen=True):
    """The state of a queue at one moment."""

    running: int = 0
    """Requests the engines have."""
    capacity: int = 0
    """Requests the engines may have of this process; 0: no limit is known, or no engine is there."""
    requests: int = 0
    tokens: int = 0
    bytes: int = 0
    oldest_seconds: float = 0.0
    p95_seconds: float = 0.0
    """The age that 95 % of those that wait have not reached."""
