"""Which rank was lost first and why, so that the many errors that follow become one message.

When a process dies, every other rank fails a moment later in a collective. What they raise only says that somebody is
gone. The monitor keeps apart what is cause and what is consequence, and waits a moment for the cause where only the
consequence is known: memory of a killed process takes the kernel time to free, and only then has it exited.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final

from blade_llm.engine.messages import EngineFailure
from blade_llm.engine.ranks.lost import LostRank, RankFailedError, failed

logger = logging.getLogger(__name__)
OnLost = Callable[[int, EngineFailure], None]
"""Called with the rank and why it is lost."""
CAUSE_SECONDS: Final = 1.5
"""How long the cause is waited for."""


class RankMonitor:
    """Thread-safe: threads that wait for processes, and the one that looks at them, report, rank 0's thread raises.

    Args:
        cause_seconds: see :data:`CAUSE_SECONDS`.
    """

    def __init__(self, cause_seconds: float = CAUSE_SECONDS) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable once a rank is lost; -1 after :meth:`close`."""
        self._cause_seconds = cause_seconds
        self._changed = threading.Condition()
        self._first: LostRank | None = None
        self._cause: LostRank | None = None
        self._on_lost: OnLost | None = None
        self._closed = False
        self.failed = False
        """A rank is lost, or did not come to a collective: ranks may wait for each other."""

    @property
    def lost(self) -> LostRank | None:
        """The rank that is to blame as far as it is known; None: none is lost."""
        return self._cause or self._first

    def report(self, lost: LostRank) -> None:
        """A process has exited or hangs. Calls :meth:`watch`'s function for the first one."""
        with self._changed:
            if self._closed:
                return
            if self._cause is None and not lost.consequence:
                self._cause = lost
                self._changed.notify_all()
            first = self._first is None
            if first:
                self._first = lost
                self.failed = True
                os.eventfd_write(self.descriptor, 1)
            on_lost = self._on_lost
        if first and on_lost is not None:
            _notify(on_lost, lost)

    def watch(self, on_lost: OnLost) -> None:
        """Call ``on_lost`` when the first rank is lost, from another thread, or now if one is lost already."""
        with self._changed:
            self._on_lost = on_lost
            lost = self._first
        if lost is not None:
            _notify(on_lost, lost)

    def raise_if_lost(self) -> None:
        """Raise :class:`RankFailedError` if a rank is lost."""
        if self._first is not None:
            raise self._error(self._first.failure)

    def explain(self, error: BaseException) -> RankFailedError | None:
        """What to raise in place of ``error``; None: it is no collective's, or nobody is to blame for it."""
        if not is_collective_error(error):
            return None
        otherwise = self._first.failure if self._first is not None else EngineFailure(message=str(error))
        self.failed = True
        found = self._error(otherwise)
        return found if self._first is not None or is_rank_lost(error) else None

    def close(self) -> None:
        """From now on processes exit because they are to."""
        with self._changed:
            if not self._closed:
                self._closed = True
                os.close(self.descriptor)
                self.descriptor = -1

    def _error(self, otherwise: EngineFailure) -> RankFailedError:
        """The cause, or ``otherwise`` if there is none in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._cause is not None or self._closed, self._cause_seconds)
        return failed(otherwise) if self._cause is None else self._cause.error


class NamingTheRank:
    """Context that raises the cause in place of a collective's error. A class, as every step enters it twice."""

    __slots__ = ("_monitor",)

    def __init__(self, monitor: RankMonitor) -> None:
        self._monitor = monitor

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and (named := self._monitor.explain(error)) is not None:
            raise named from None


def is_collective_error(error: BaseException) -> bool:
    """Whether ``error`` is a :class:`~blade_llm.parallel.group.CollectiveError`, as all ranks have when one is lost."""
    return _is_of_group(error, "CollectiveError")


def is_rank_lost(error: BaseException) -> bool:
    """Whether ``error`` is a :class:`~blade_llm.parallel.group.RankLostError`."""
    return _is_of_group(error, "RankLostError")


def _is_of_group(error: BaseException, name: str) -> bool:
    group = sys.modules.get("blade_llm.parallel.group")  # imports torch; whoever raises its errors has imported it
    return group is not None and isinstance(error, getattr(group, name))


def _notify(on_lost: OnLost, lost: LostRank) -> None:
    try:
        on_lost(lost.rank, lost.failure)
    except Exception:  # the rank is lost all the same, and rank 0 raises
        logger.exception("rank %d is lost, and others could not be notified", lost.rank)
