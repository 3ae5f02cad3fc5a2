"""The budget of request bodies: how many bytes of them are in memory, of all connections together.

A body counts from its first byte until its request has ended: while it is sent, while it waits in a queue, and as long
as it may have to be sent to another engine. What does not fit is refused before it is read, where its length is
announced. An announced length alone takes nothing, so uploads that hang take only what they have sent.
"""

LARGE_BODY = 64 * 1024
"""Bytes above which a body counts as large."""
SMALL_SHARE = 8
"""One part in so many is kept for bodies that are not large, so that large ones cannot keep them out."""
KEY_SHARE = 2
"""One API key gets one part in so many of what large bodies may take, so that it cannot keep others out."""


class BodyBudget:
    """The bytes of bodies in memory, and their limit.

    Args:
        limit: bytes that all bodies together may take.
    """

    __slots__ = ("_large_limit", "_used_by", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._used_by: dict[str, int] = {}
        """By the API key of large bodies; what is not there uses nothing."""
        self._large_limit = largest_body(limit)

    def fits(self, more: int, size: int) -> bool:
        """Whether there is room for ``more`` bytes of a body of ``size``."""
        return self.used + more <= (self.limit if size <= LARGE_BODY else self._large_limit)

    def allows(self, more: int, held: int, key: str) -> bool:
        """Whether a key may have ``more`` bytes of a body of which ``held`` are counted already.

        It may have its share of what large bodies may take, or one body.
        """
        used = self._used_by.get(key, 0)
        return used <= held or used + more <= self._large_limit // KEY_SHARE

    def take(self, more: int, key: str = "") -> None:
        """Count so many bytes, or give them back; ``key``: whose they are, where it is known."""
        self.used += more
        if key:
            used = self._used_by.get(key, 0) + more
            if used:
                self._used_by[key] = used
            else:
                self._used_by.pop(key, None)


def largest_body(limit: int) -> int:
    """The largest body that a budget of so many bytes ever has room for."""
    return limit - limit // SMALL_SHARE
