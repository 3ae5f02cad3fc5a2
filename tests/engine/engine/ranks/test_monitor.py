"""Of all the errors that follow the loss of a rank, the one that explains it is raised."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator

import pytest
from engine_support.fake_ranks import failure

from blade_llm.engine.messages import EngineFailure
from blade_llm.engine.ranks.lost import LostRank, RankFailedError, RankUserError
from blade_llm.engine.ranks.monitor import NamingTheRank, RankMonitor
from blade_llm.models.errors import ModelFilesError
from blade_llm.parallel.group import CollectiveError, RankLostError

KILLED = LostRank(1, failure("rank 1 was ended by SIGKILL"))
FOLLOWED = LostRank(2, failure("rank 2: RankLostError: rank 1 is lost"), consequence=True)


@pytest.fixture
def monitor() -> Iterator[RankMonitor]:
    made = RankMonitor(cause_seconds=0.3)
    yield made
    made.close()


def readable(monitor: RankMonitor) -> bool:
    return bool(select.select([monitor.descriptor], [], [], 0)[0])


def _by_poll(monitor: RankMonitor) -> None:
    monitor.raise_if_lost()


def _by_collective() -> None:
    raise RankLostError("somebody is lost")


def test_without_a_loss_nothing_happens(monitor: RankMonitor) -> None:
    monitor.raise_if_lost()
    assert monitor.lost is None
    assert not readable(monitor)
    with pytest.raises(ValueError, match=r"^other$"), NamingTheRank(monitor):
        raise ValueError("other")


def test_a_cause_is_raised_at_once(monitor: RankMonitor) -> None:
    monitor.report(KILLED)
    monitor.report(FOLLOWED)
    assert readable(monitor)
    assert monitor.lost == KILLED
    with pytest.raises(RankFailedError, match=r"^rank 1 was ended by SIGKILL$"):
        monitor.raise_if_lost()


@pytest.mark.parametrize("by", ["collective", "poll"])
def test_a_cause_that_comes_after_its_consequence_is_raised(monitor: RankMonitor, by: str) -> None:
    monitor.report(FOLLOWED)
    assert readable(monitor)
    later = threading.Timer(0.1, monitor.report, [KILLED])
    later.start()
    with pytest.raises(RankFailedError, match=r"^rank 1 was ended by SIGKILL$"), NamingTheRank(monitor):
        _by_poll(monitor) if by == "poll" else _by_collective()
    later.join()
    assert monitor.lost == KILLED


def test_a_consequence_is_better_than_nothing(monitor: RankMonitor) -> None:
    monitor.report(FOLLOWED)
    with pytest.raises(RankFailedError, match=r"^rank 2: RankLostError: rank 1 is lost$"):
        monitor.raise_if_lost()


def test_a_rank_that_hangs_is_named_by_the_collective(monitor: RankMonitor) -> None:
    with pytest.raises(RankFailedError, match=r"^rank 1 did not come$"), NamingTheRank(monitor):
        raise RankLostError("rank 1 did not come")


def test_a_collective_that_fails_by_itself_is_not_explained(monitor: RankMonitor) -> None:
    with pytest.raises(CollectiveError, match=r"^out of step$"), NamingTheRank(monitor):
        raise CollectiveError("out of step")


def test_a_collective_that_fails_because_of_a_loss_is(monitor: RankMonitor) -> None:
    monitor.report(KILLED)
    with pytest.raises(RankFailedError, match=r"^rank 1 was ended by SIGKILL$"), NamingTheRank(monitor):
        raise CollectiveError("out of step")


def test_what_a_user_can_change_stays_that(monitor: RankMonitor) -> None:
    monitor.report(LostRank(1, failure("rank 1: lower it", user_error=True)))
    with pytest.raises(ModelFilesError, match=r"^rank 1: lower it$") as raised:
        monitor.raise_if_lost()
    assert isinstance(raised.value, RankUserError)


def test_the_first_loss_is_announced_once_to_whoever_watches(monitor: RankMonitor) -> None:
    calls: list[tuple[int, str]] = []

    def on_lost(rank: int, failure: EngineFailure) -> None:
        calls.append((rank, failure.message))
        raise OSError("a broken function must not hide the loss")

    monitor.watch(on_lost)
    monitor.report(FOLLOWED)
    monitor.report(KILLED)
    assert calls == [(2, FOLLOWED.failure.message)]
    monitor.watch(on_lost)  # late
    assert len(calls) == 2


def test_an_exit_after_the_end_is_no_loss(monitor: RankMonitor) -> None:
    monitor.close()
    monitor.report(KILLED)
    monitor.raise_if_lost()
    assert monitor.lost is None
