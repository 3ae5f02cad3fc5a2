"""What a process has done so far and what it does now, as the kernel shows it to others."""

from __future__ import annotations

import contextlib
import enum
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_STATE, _UTIME, _STIME = 0, 11, 12
"""Fields of ``/proc/PID/stat`` behind the command's name."""
_SWITCHES: Final = (b"voluntary_ctxt_switches:", b"nonvoluntary_ctxt_switches:")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class State(enum.Enum):
    """What a process does."""

    RUNS = "runs"
    """A thread has a core or waits for one; whatever else is not known here counts as this."""
    SLEEPS = "sleeps"
    """All threads wait: for each other, for a clock, for other processes."""
    DISK = "disk"
    """No thread runs, and one cannot be interrupted, as where it waits for a disk or for memory."""
    STOPPED = "stopped"
    """By a signal, until SIGCONT."""
    TRACED = "traced"
    """A debugger has stopped it."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What a process has done until a moment, and its state then."""

    state: State
    switches: int | None
    """How often its main thread has left a core: each sleep is one. None: this kernel does not tell."""
    cpu_seconds: float
    """CPU time of all threads."""


def activity_of(pid: int, before: Activity | None = None) -> Activity | None:
    """The activity of a process; None: it has exited, or is not to be seen.

    Threads other than the main one are looked at only where that one sleeps and has not done anything since ``before``.
    """
    process = Path(f"/proc/{pid}")
    try:
        fields = _fields(process)
        switches = _switches(process)
        state = _STATES.get(fields[_STATE], State.RUNS)
        if state is State.SLEEPS and before is not None and before.switches == switches:
            state = _of_threads(process)
    except OSError:
        return None
    if fields[_STATE] in _ENDED:
        return None
    return Activity(state, switches, (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS)


_STATES: Final = {b"S": State.SLEEPS, b"D": State.DISK, b"T": State.STOPPED, b"t": State.TRACED}
_ENDED: Final = (b"Z", b"X")


def _of_threads(process: Path) -> State:
    """The state of a process whose main thread sleeps."""
    states = set()
    for thread in (process / "task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            states.add(_STATES.get(_fields(thread)[_STATE], State.RUNS))
    return next((state for state in (State.TRACED, State.RUNS, State.DISK) if state in states), State.SLEEPS)


def _fields(task: Path) -> list[bytes]:
    return (task / "stat").read_bytes().rpartition(b")")[2].split()


def _switches(process: Path) -> int | None:
    lines = (process / "status").read_bytes().splitlines()
    found = [int(line.split()[1]) for line in lines if line.startswith(_SWITCHES)]
    return sum(found) if len(found) == len(_SWITCHES) else None
