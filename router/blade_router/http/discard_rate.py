"""How fast refused clients may go on sending.

What a refused client still sends is read and dropped, so that it gets to read why: a reset would discard the
response. But a client that is refused a large body may send all of it, come back at once, and keep the event loop busy
with nothing else. So all of them together are read at a bounded rate, and those beyond it are slowed down.
"""

RATE = 64 << 20
"""Bytes a second, of all refused clients together."""
BURST_SECONDS = 0.25
"""So far reading may run ahead of the rate before anybody is paused."""


class DiscardRate:
    """When the bytes that were dropped would have come at the allowed rate."""

    __slots__ = ("_paid_until",)

    def __init__(self) -> None:
        self._paid_until = 0.0

    def pause(self, size: int, now: float) -> float:
        """So many bytes were dropped: the seconds for which the client that sent them is not read."""
        self._paid_until = max(self._paid_until, now) + size / RATE
        ahead = self._paid_until - now
        return ahead if ahead > BURST_SECONDS else 0.0
