"""The budget of request bodies: how many bytes of them are in memory, of all connections together.

A body counts from its first byte until its request has ended, and is held for as long: while it is sent, while it waits
in a queue, and while it may have to be sent to another engine. With it counts what is made of it: what a large one is
parsed from, and the text of its prompt. What does not fit is refused before it is read, where its length is announced.
An announced length alone takes nothing, so uploads that hang take only what they have sent.
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

    __slots__ = ("_used_by", "large_limit", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._used_by: dict[str, int] = {}
        """By the API key of large bodies; what is not there uses nothing."""
        self.large_limit = largest_body(limit)
        """Bytes that large bodies may fill it up to, and what is made of them."""

    def fits(self, more: int, size: int) -> bool:
        """Whether there is room for ``more`` bytes of a body of ``size``."""
        return self.used + more <= (self.limit if size <= LARGE_BODY else self.large_limit)

    def allows(self, more: int, held: int, key: str) -> bool:
        """Whether a key may have ``more`` bytes of a body of which ``held`` are counted already.

        It may have its share of what large bodies may take, or one body.
        """
        used = self._used_by.get(key, 0)
        return used <= held or used + more <= self.large_limit // KEY_SHARE

    def take(self, more: int, key: str = "") -> None:
        """Count so many bytes, or give them back; ``key``: whose they are, where it is known."""
        self.used += more
        if key:
            used = self._used_by.get(key, 0) + more
            if used:
                self._used_by[key] = used
            else:
                self._used_by.pop(key, None)


class BodyCharge:
    """What one request takes of the budget, from when its body is complete until it has ended.

    Args:
        size: bytes of the body; they count from now on.
        key: the API key in whose share they count; empty where it is not known.
    """

    __slots__ = ("_budget", "_ended", "_key", "_text", "size")

    def __init__(self, budget: BodyBudget, size: int, key: str) -> None:
        self._budget = budget
        self._key = key
        self._ended = False
        self._text = 0
        """Bytes of them for the text of its prompt."""
        self.size = 0
        """All bytes that count for the request."""
        self.add(size)

    def has_room(self, more: int) -> bool:
        """Whether the request, whose body is large, may take so many bytes besides it. Always where no other takes
        much: what may be received can be read."""
        budget = self._budget
        others = budget.used - self.size
        fits = budget.used + more <= budget.large_limit and budget.allows(more, self.size, self._key)
        return fits or others <= budget.limit // SMALL_SHARE

    def set_text(self, size: int) -> None:
        """The text of its prompt takes so many bytes, or is expected to; a short one does not count."""
        if size <= LARGE_BODY:
            size = 0
        self.add(size - self._text)
        self._text = size

    def add(self, more: int) -> None:
        """Count so many bytes more, or fewer; nothing once the request has ended."""
        if not self._ended:
            self.size += more
            self._budget.take(more, self._key)

    def release(self) -> None:
        """The request has ended."""
        self.add(-self.size)
        self._ended = True


def largest_body(limit: int) -> int:
    """The largest body that a budget of so many bytes ever has room for."""
    return limit - limit // SMALL_SHARE
