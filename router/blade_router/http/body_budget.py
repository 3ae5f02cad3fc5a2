"""The budget of request bodies: how many bytes of them are in memory, of all connections together.

A body counts from its first byte until its request has ended: while it is sent, while it waits in a queue, and as long
as it may have to be sent to another engine. What does not fit is refused before it is read, where its length is
announced. An announced length alone takes nothing, so uploads that hang take only what they have sent.
"""

LARGE_BODY = 64 * 1024
"""Bytes above which a body counts as large."""
SMALL_SHARE = 8
"""One part in so many is kept for bodies that are not large, so that large ones cannot keep them out."""


class BodyBudget:
    """The bytes of bodies in memory, and their limit.

    Args:
        limit: bytes that all bodies together may take.
    """

    __slots__ = ("_large_limit", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._large_limit = largest_body(limit)

    def fits(self, more: int, size: int) -> bool:
        """Whether there is room for ``more`` bytes of a body of ``size``."""
        return self.used + more <= (self.limit if size <= LARGE_BODY else self._large_limit)


def largest_body(limit: int) -> int:
    """The largest body that a budget of so many bytes ever has room for."""
    return limit - limit // SMALL_SHARE
