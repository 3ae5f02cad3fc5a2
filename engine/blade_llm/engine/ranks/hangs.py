"""Notices a rank whose process lives and does nothing, seconds after it has begun to.

No rank has to say anything for that. A rank that waits wakes at least every
:data:`~blade_llm.parallel.waiting.LONGEST_SLEEP` seconds, one that computes uses CPU time, one that gets no core is
ready to run, and one that waits for a disk cannot be interrupted: the kernel shows all of it
(:mod:`blade_llm.engine.ranks.activity`). What shows nothing of it is stopped, frozen, or waits for what does not come.
So it is the rank that is to blame that is found, and not those that wait for it.

A rank that computes for ever is not found here; collectives that wait for it are late in the end.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from blade_llm.engine.messages import EngineFailure
from blade_llm.engine.ranks.activity import Activity, State, activity_of
from blade_llm.engine.ranks.lost import LostRank
from blade_llm.parallel.waiting import LONGEST_SLEEP

LOOK_SECONDS: Final = LONGEST_SLEEP
"""Between two looks."""
HANG_LOOKS: Final = 6
"""Looks in which a rank has done nothing until it is lost. Looks and not seconds: while the process that looks does not
run itself, nobody hangs."""
DISK_LOOKS: Final = 120
"""The same while it waits for a disk."""
_WORK_SECONDS: Final = 0.03
"""CPU time without a sleep of the main thread that is work. Threads of libraries that do nothing but wake use less."""
STACKS_SIGNAL: Final = signal.SIGUSR1
"""To a rank that hangs, unless it is stopped: write the stacks of your threads to standard error."""
_JOIN_SECONDS: Final = 1.0


class HangJudge:
    """What consecutive looks at one rank's process say; a function of them alone."""

    def __init__(self) -> None:
        self._last: Activity | None = None
        self._cpu_seconds = 0.0
        """Of its process when it was last seen to do something."""
        self._idle_looks = 0

    def look(self, seen: Activity | None, *, serving: bool) -> str | None:
        """How the rank hangs; None: it does not, as far as is known.

        ``seen``: its process now, None where it has exited. ``serving``: all ranks are ready and compute on CPUs; else
        only a process that was stopped hangs.
        """
        last, self._last = self._last, seen
        if seen is None or last is None or seen.state is not last.state or self._worked(last, seen):
            self._cpu_seconds = 0.0 if seen is None else seen.cpu_seconds
            self._idle_looks = 0
            return None
        limit = _limit(seen, serving)
        self._idle_looks = 0 if limit is None else self._idle_looks + 1
        if limit is None or self._idle_looks < limit:
            return None
        return _HOW[seen.state].format(seconds=limit * LOOK_SECONDS)

    def _worked(self, last: Activity, seen: Activity) -> bool:
        return last.switches != seen.switches or seen.cpu_seconds - self._cpu_seconds >= _WORK_SECONDS


def _limit(seen: Activity, serving: bool) -> int | None:
    """Looks without work after which a rank hangs; None: never, or it cannot be known."""
    if seen.state is State.STOPPED:
        return HANG_LOOKS
    if not serving or not seen.switches:  # a kernel that does not count them
        return None
    return {State.SLEEPS: HANG_LOOKS, State.DISK: DISK_LOOKS}.get(seen.state)


_HOW: Final = {
    State.STOPPED: "hangs: its process was stopped (SIGSTOP) and did not go on within {seconds:g} s",
    State.SLEEPS: "hangs: its process has done nothing for {seconds:g} s, not even what a rank does that waits",
    State.DISK: "hangs: its process has waited for a disk for {seconds:g} s",
}


class WatchedRank(Protocol):
    """A rank's process; :class:`~blade_llm.engine.ranks.child.RankChild` is one."""

    @property
    def rank(self) -> int: ...

    @property
    def pid(self) -> int: ...


class HangWatch:
    """Looks at the processes of ``ranks`` from a thread of its own, and calls ``on_hang`` from there, once for each
    that hangs. One that could has written the stacks of its threads to its log then.

    Args:
        serving: see :meth:`HangJudge.look`.
    """

    def __init__(
        self,
        ranks: Sequence[WatchedRank],
        on_hang: Callable[[LostRank], None],
        serving: Callable[[], bool],
        *,
        interval: float = LOOK_SECONDS,
    ) -> None:
        self._ranks = ranks
        self._on_hang = on_hang
        self._serving = serving
        self._interval = interval
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look: all processes are there. To be called once."""
        if self._ranks:
            self._thread = threading.Thread(target=self._run, name="rank-hangs", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread. Idempotent, and from any thread."""
        self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        judges = {rank: HangJudge() for rank in self._ranks}
        before: dict[WatchedRank, Activity | None] = dict.fromkeys(judges)
        while not self._closed.wait(self._interval):
            serving = self._serving()
            for rank, judge in list(judges.items()):
                before[rank] = seen = activity_of(rank.pid, before[rank])
                if (how := judge.look(seen, serving=serving)) is not None:
                    del judges[rank]
                    if seen is not None and seen.state is not State.STOPPED:
                        os.kill(rank.pid, STACKS_SIGNAL)
                    self._on_hang(LostRank(rank.rank, EngineFailure(message=f"rank {rank.rank} {how}")))
