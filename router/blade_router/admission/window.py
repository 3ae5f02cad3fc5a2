"""Amounts of the last minute, over all worker processes of a router.

Time is cut into slots. An amount counts from the moment it is added until the slot it came in is a whole window old:
at least 60 and at most 62 seconds. So in no 60 seconds more can pass than a limit allows, wherever one begins to count.

Each worker writes its slots and, beside them, a total that only grows. Summing the slots of all workers costs
microseconds; it is done once per slot, and until the next one the others' totals show what they have added since.
"""

from collections.abc import MutableSequence, Sequence

SLOT = 2.0
"""Seconds."""
SLOTS = 31
"""The window, and the slot in progress."""
WINDOW = (SLOTS - 1) * SLOT
"""Seconds in which a limit holds."""
WORDS = SLOTS + 2
"""Of one worker: the total ever added, the number of the newest slot, and the slots, the newest of them at its number
modulo their count."""

_TOTAL, _NEWEST, _FIRST = 0, 1, 2

Cell = MutableSequence[int] | memoryview
"""Numbers of one worker: in shared memory, or a list where there is no other worker, which is three times as fast."""


def slot_of(now: float) -> int:
    """The number of the slot a moment (``time.monotonic``, which all processes of a machine share) belongs to."""
    return int(now / SLOT)


class Window:
    """One amount, e.g. the tokens of a key.

    Args:
        cells: of all workers, ``WORDS`` numbers each.
        own: that of this worker; the only one that is written.
    """

    __slots__ = ("_base", "_cells", "_others", "_own", "_slot")

    def __init__(self, cells: Sequence[Cell], own: Cell) -> None:
        self._cells = cells
        self._own = own
        self._slot = -1
        """The slot for which ``_base`` holds."""
        self._base = 0
        """What was in the window, less the totals at that time."""
        self._others = len(cells) > 1

    def used(self, slot: int) -> int:
        """The amount in the window that ends in this slot."""
        if slot != self._slot:
            self._sum(slot)
        if not self._others:
            return self._base + int(self._own[_TOTAL])
        used = self._base
        for cell in self._cells:
            used += cell[_TOTAL]
        if used < 0:  # a worker was started again, and began at 0
            self._slot = -1
            return self.used(slot)
        return used

    def add(self, amount: int, slot: int) -> None:
        """Count ``amount`` from now on; ``slot`` is the one in progress."""
        own = self._own
        if own[_NEWEST] != slot:
            self._turn(slot)
        own[_FIRST + slot % SLOTS] += amount
        own[_TOTAL] += amount

    def give_back(self, amount: int, then: int, slot: int) -> None:
        """Undo a part of what was added in the slot ``then``, if that still counts; ``slot`` is the one in progress."""
        own = self._own
        if own[_NEWEST] != slot:
            self._turn(slot)
        if then > slot - SLOTS:
            own[_FIRST + then % SLOTS] -= amount
            own[_TOTAL] -= amount

    def free_in(self, excess: int, now: float) -> float:
        """Seconds until at least ``excess`` of what is in the window has left it."""
        slot = slot_of(now)
        for oldest in range(slot - SLOTS + 1, slot + 1):
            excess -= self._in_slot(oldest)
            if excess <= 0:
                return (oldest + SLOTS) * SLOT - now
        return WINDOW

    def _sum(self, slot: int) -> None:
        """Sum up the amounts of all workers that count in this slot."""
        if self._own[_NEWEST] != slot:
            self._turn(slot)
        base = 0
        for cell in self._cells:
            # What another worker adds between these two lines counts twice until the next slot, and never not at all.
            base -= cell[_TOTAL]
            newest = cell[_NEWEST]
            if newest > slot - SLOTS:
                for each in range(max(slot, newest) - SLOTS + 1, newest + 1):
                    base += cell[_FIRST + each % SLOTS]
        self._base, self._slot = base, slot

    def _in_slot(self, slot: int) -> int:
        return sum(cell[_FIRST + slot % SLOTS] for cell in self._cells if cell[_NEWEST] - SLOTS < slot <= cell[_NEWEST])

    def _turn(self, slot: int) -> None:
        """Make the own slots ready for this one: empty those that were of a past window."""
        own = self._own
        newest = own[_NEWEST]
        for each in range(max(newest + 1, slot - SLOTS + 1), slot + 1):
            own[_FIRST + each % SLOTS] = 0
        own[_NEWEST] = slot
