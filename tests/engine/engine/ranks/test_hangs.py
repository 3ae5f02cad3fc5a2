"""A rank that does nothing is found, whatever it did before, and none that waits, computes or gets no core."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from engine_support.server_process import wait_until
from hypothesis import given
from hypothesis import strategies as st

from blade_llm.engine.ranks.activity import Activity, State, activity_of
from blade_llm.engine.ranks.hangs import DISK_LOOKS, HANG_LOOKS, HangJudge, HangWatch
from blade_llm.engine.ranks.lost import LostRank


class Process:
    """A rank's process as the kernel shows it, look by look."""

    def __init__(self, switches: int | None = 100) -> None:
        self.state = State.SLEEPS
        self.switches = switches
        self.cpu_seconds = 7.0

    def after(self, what: str) -> Activity:
        """Its activity after half a second of ``what``."""
        if what in ("waits", "begins to compute") and self.switches:
            self.switches += 1
        if what in ("computes", "threads compute"):
            self.cpu_seconds += 0.5
        if what == "library's threads wake":
            self.cpu_seconds += 0.002
        self.state = _STATES[what]
        return Activity(self.state, self.switches, self.cpu_seconds)


_STATES = {
    "waits": State.SLEEPS,
    "begins to compute": State.RUNS,
    "computes": State.RUNS,
    "gets no core": State.RUNS,
    "threads compute": State.SLEEPS,
    "is debugged": State.TRACED,
    "does nothing": State.SLEEPS,
    "library's threads wake": State.SLEEPS,
    "waits for a disk": State.DISK,
    "is stopped": State.STOPPED,
}
_LIMITS = {
    "does nothing": HANG_LOOKS,
    "library's threads wake": HANG_LOOKS,
    "waits for a disk": DISK_LOOKS,
    "is stopped": HANG_LOOKS,
}
_SAYS = {
    "does nothing": "has done nothing for 3 s",
    "library's threads wake": "has done nothing for 3 s",
    "waits for a disk": "has waited for a disk for 60 s",
    "is stopped": "was stopped (SIGSTOP) and did not go on within 3 s",
}
WELL = st.lists(st.sampled_from([what for what in _STATES if what not in _LIMITS]), min_size=1, max_size=20)
SHORT = st.sampled_from(list(_LIMITS)).flatmap(
    lambda what: st.integers(0, _LIMITS[what] - 1).map(lambda looks: [what] * looks)
)


def verdicts(judge: HangJudge, process: Process, events: list[str], serving: bool = True) -> list[str | None]:
    return [judge.look(process.after(event), serving=serving) for event in events]


@given(st.lists(st.tuples(st.lists(WELL, max_size=3), SHORT), max_size=12))
def test_what_is_over_in_time_is_no_hang(history: list[tuple[list[list[str]], list[str]]]) -> None:
    judge, process = HangJudge(), Process()
    for well, short in history:
        events = [*(event for part in well for event in part), "waits", *short]
        assert set(verdicts(judge, process, events)) == {None}


@given(WELL, st.sampled_from(list(_LIMITS)))
def test_what_does_nothing_is_found_whatever_was_before(before: list[str], what: str) -> None:
    judge, process = HangJudge(), Process()
    assert set(verdicts(judge, process, ["waits", *before, "waits", "waits"])) == {None}
    *earlier, last = verdicts(judge, process, [what] * (_LIMITS[what] + (_STATES[what] is not State.SLEEPS)))
    assert set(earlier) == {None}
    assert last is not None
    assert _SAYS[what] in last


@given(WELL)
def test_before_all_are_ready_only_what_is_stopped_hangs(before: list[str]) -> None:
    judge, process = HangJudge(), Process()
    asleep = [*before, *["does nothing"] * 50, *["waits for a disk"] * 500]
    assert set(verdicts(judge, process, asleep, serving=False)) == {None}
    assert verdicts(judge, process, ["is stopped"] * (HANG_LOOKS + 1), serving=False)[-1] is not None


def test_time_before_all_are_ready_does_not_count() -> None:
    judge, process = HangJudge(), Process()
    verdicts(judge, process, ["waits", *["does nothing"] * 50], serving=False)
    assert set(verdicts(judge, process, ["waits", *["does nothing"] * (HANG_LOOKS - 1)])) == {None}
    assert verdicts(judge, process, ["does nothing"]) != [None]


@pytest.mark.parametrize("switches", [None, 0])
def test_where_the_kernel_does_not_count_only_what_is_stopped_hangs(switches: int | None) -> None:
    judge, process = HangJudge(), Process(switches)
    assert set(verdicts(judge, process, ["does nothing"] * 50)) == {None}
    assert verdicts(judge, process, ["is stopped"] * (HANG_LOOKS + 1))[-1] is not None


def test_a_process_that_has_exited_does_not_hang() -> None:
    """Whoever waits for it says why it exited."""
    judge, process = HangJudge(), Process()
    verdicts(judge, process, ["waits", *["does nothing"] * (HANG_LOOKS - 1)])
    assert judge.look(None, serving=True) is None
    assert judge.look(None, serving=True) is None


WAITS = "import time\nwhile True: time.sleep(0.001)"
STUCK = "lock.acquire()"
WAITS_THEN_STUCK = "import select\nwhile not select.select([sys.stdin], [], [], 0.001)[0]: pass\nlock.acquire()"
COMPUTES = "while True: pass"
THREAD_COMPUTES = "threading.Thread(target=compute).start(); lock.acquire()"
_BEGIN = """
import faulthandler, signal, sys, threading
def compute():
    while True: pass
faulthandler.register(signal.SIGUSR1)
lock = threading.Lock()
lock.acquire()
print(flush=True)
"""


@dataclass(eq=False)
class Rank:
    """A process that does something, as a rank."""

    rank: int
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid


Start = Callable[[int, str], Rank]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[subprocess.Popen[bytes]] = []

    def start_process(rank: int, code: str) -> Rank:
        process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN + code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        made.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return Rank(rank, process)

    yield start_process
    for process in made:
        process.kill()
        process.communicate()


def state_of(rank: Rank) -> State | None:
    activity = activity_of(rank.pid)
    return None if activity is None else activity.state


def switches_of(rank: Rank) -> int:
    activity = activity_of(rank.pid)
    assert activity is not None
    assert activity.switches is not None
    return activity.switches


def test_the_kernel_shows_what_a_process_does(start: Start) -> None:
    def states(code: str) -> set[State]:
        pid = start(1, code).pid
        before, found = activity_of(pid), set()
        for _ in range(50):
            before = activity_of(pid, before)
            assert before is not None
            found.add(before.state)
        return found

    assert State.RUNS in states(COMPUTES)
    assert State.RUNS in states(THREAD_COMPUTES), "though its main thread sleeps"
    waits, stuck = start(1, WAITS), start(2, STUCK)
    enough = switches_of(waits) + 3
    wait_until(lambda: switches_of(waits) > enough)
    wait_until(lambda: state_of(stuck) is State.SLEEPS)
    assert activity_of(stuck.pid) == activity_of(stuck.pid, activity_of(stuck.pid))
    stuck.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(stuck) is State.STOPPED)
    stuck.process.kill()
    wait_until(lambda: activity_of(stuck.pid) is None)
    assert activity_of(waits.pid) is not None


def test_the_rank_that_hangs_is_named_and_shows_where(start: Start) -> None:
    """And neither the one that waits for it, nor those that compute, or whose threads do."""
    ranks = [start(1, WAITS), start(2, WAITS_THEN_STUCK), start(3, COMPUTES), start(4, THREAD_COMPUTES)]
    found: list[LostRank] = []
    looks: list[bool] = []

    def serving() -> bool:
        looks.append(True)
        return True

    watch = HangWatch(ranks, found.append, serving, interval=0.02)
    watch.start()
    wait_until(lambda: len(looks) > 3 * HANG_LOOKS)
    assert not found, "all are well"
    stdin = ranks[1].process.stdin
    assert stdin is not None
    stdin.write(b"\n")
    stdin.flush()
    wait_until(lambda: bool(found))
    watch.close()
    assert [lost.rank for lost in found] == [2]
    assert found[0].failure.message.startswith("rank 2 hangs: its process has done nothing")
    assert not found[0].consequence
    stderr = ranks[1].process.stderr
    assert stderr is not None
    assert b"most recent call first" in stderr.readline()


def test_a_rank_that_is_stopped_is_named(start: Start) -> None:
    ranks = [start(1, WAITS), start(2, WAITS)]
    found: list[LostRank] = []
    watch = HangWatch(ranks, found.append, lambda: False, interval=0.02)
    watch.start()
    ranks[0].process.send_signal(signal.SIGSTOP)
    wait_until(lambda: bool(found))
    watch.close()
    (lost,) = found
    assert lost.failure.message == "rank 1 hangs: its process was stopped (SIGSTOP) and did not go on within 3 s"
