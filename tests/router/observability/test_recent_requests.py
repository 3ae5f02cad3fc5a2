"""How many requests are recorded for the web UI, and which."""

from itertools import pairwise

import pytest
from router_support.requests import request

from blade_router.observability.recent_requests import PER_SECOND, RecentRequests


def end(recent: RecentRequests, ended: float, status: int = 200) -> None:
    """A request of a second begins and ends."""
    made = request("x")
    recent.begin(made, ended - 1.0)
    recent.end(made, ended - 1.0, ended, status, "")


@pytest.fixture
def recent() -> RecentRequests:
    return RecentRequests()


def test_so_many_at_once_are_all_recorded(recent: RecentRequests) -> None:
    for _ in range(PER_SECOND):
        end(recent, 100.0)
    assert [each.number for each in recent.ended] == list(range(1, PER_SECOND + 1))


def test_all_are_recorded_at_that_rate(recent: RecentRequests) -> None:
    count = 4 * PER_SECOND
    for number in range(count):
        end(recent, 100.0 + number / PER_SECOND)
    assert recent.count == count


def test_of_more_as_many_a_second_are_recorded_all_over_it(recent: RecentRequests) -> None:
    for number in range(20 * PER_SECOND):  # four seconds at five times the rate
        end(recent, 100.0 + number / (5 * PER_SECOND))
    assert recent.count == pytest.approx(5 * PER_SECOND, abs=2)  # at once in the first, and as many in each of four
    last = [each.ended for each in recent.ended if each.ended >= 103.0]
    assert len(last) == pytest.approx(PER_SECOND, abs=2)
    assert max(after - before for before, after in pairwise(last)) < 2 / PER_SECOND
    assert not recent.in_flight


def test_those_that_failed_are_recorded_beside_all_the_others(recent: RecentRequests) -> None:
    for _ in range(10 * PER_SECOND):
        end(recent, 100.0)
    end(recent, 100.0, 503)
    for _ in range(10 * PER_SECOND):
        end(recent, 100.0, 429)
    assert sum(each.status == 503 for each in recent.ended) == 1
    assert sum(each.status == 200 for each in recent.ended) == PER_SECOND
    assert recent.count == 2 * PER_SECOND
