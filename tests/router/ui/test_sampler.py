"""Samples of the traffic, one a second, whether somebody looks or not."""

import time

import pytest
from router_support.requests import request

from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.observability.accounts import MAX_LABELS, OTHER
from blade_router.observability.metrics import Metrics
from blade_router.observability.recent_requests import KEPT, PER_SECOND, RecentRequests
from blade_router.request.usage import Usage
from blade_router.ui.parts import Known, OwnPart
from blade_router.ui.points import key_points, whole_point
from blade_router.ui.request_rows import SHOWN
from blade_router.ui.sampler import Sampler


class Traffic:
    """Requests that begin and end at once, and are recorded as if they came one after the other."""

    def __init__(self) -> None:
        self.metrics = Metrics(EndpointSet())
        self.recent = RecentRequests()
        self.sampler = Sampler(self.metrics, self.recent)
        self.own = OwnPart(self.metrics.endpoints, self.recent, self.sampler)
        self._later = 0.0

    def request(self, key: str = "k", status: int = 200, tokens: int = 10) -> None:
        started = time.perf_counter()
        self.metrics.begin(started)
        made = request("x")
        made.key = key
        self._later += 1.0 / PER_SECOND
        begun = started + self._later
        self.recent.begin(made, begun)
        self.metrics.end(status, started, started + 0.01, True, key, "m", Usage(20, tokens, 5))
        self.recent.end(made, begun, begun + 0.5, status, "")


@pytest.fixture
def traffic() -> Traffic:
    return Traffic()


def test_a_sample_has_what_happened_since_the_last(traffic: Traffic) -> None:
    traffic.request("a")
    traffic.request("a", status=503)
    traffic.request("b", tokens=7)
    traffic.sampler.sample(100.0)
    (first,) = traffic.sampler.samples
    assert set(first.keys) == {"a", "b"}
    assert first.errors == pytest.approx(first.rate / 3, rel=0.01)
    assert first.keys["b"][2] / first.keys["b"][0] == pytest.approx(7, rel=0.01)
    assert first.ttft is not None
    traffic.sampler.sample(101.0)
    second = traffic.sampler.samples[-1]
    assert (second.rate, second.keys, second.errors) == (0.0, {}, 0.0)


def test_there_is_one_a_second(traffic: Traffic) -> None:
    for now in (100.0, 100.9, 101.0, 100.5):
        traffic.sampler.sample(now)
    assert [each.time for each in traffic.sampler.samples] == [100, 101]
    assert [each.time for each in traffic.sampler.since(100)] == [101]


def test_tokens_of_a_stream_count_while_it_comes(traffic: Traffic) -> None:
    traffic.request("a", tokens=1)
    made = request("x")
    made.key = "a"
    traffic.recent.begin(made, time.perf_counter())
    made.events = 30
    traffic.sampler.sample(100.0)
    assert traffic.sampler.samples[-1].keys["a"][2] > 0
    made.events = 0
    traffic.sampler.sample(101.0)
    assert traffic.sampler.samples[-1].keys["a"][2] == 0  # never below


def test_streams_of_more_keys_than_are_told_apart_count_together(traffic: Traffic) -> None:
    for number in range(MAX_LABELS):
        traffic.request(f"k{number}")
    for number in range(2 * MAX_LABELS):
        made = request("x")
        made.key = f"k{number}"
        made.events = 5
        traffic.recent.begin(made, time.perf_counter())
    traffic.sampler.sample(100.0)
    keys = traffic.sampler.samples[-1].keys
    assert set(keys) == {*(f"k{number}" for number in range(MAX_LABELS)), OTHER}
    assert keys[OTHER][2] == pytest.approx(MAX_LABELS * 5 / 15 * keys["k0"][2], rel=0.01)
    (point,) = key_points(traffic.sampler.samples, OTHER, ())
    assert point.tokens == {}


def test_the_most_busy_keys_are_told_apart(traffic: Traffic) -> None:
    for key in ("a", "b", "c"):
        traffic.request(key)
    traffic.sampler.sample(100.0)
    (sample,) = traffic.sampler.samples
    point = whole_point(sample, frozenset(("a",)), 0.5)
    assert set(point.tokens) == {"a", "other"}
    assert point.tokens["other"] == pytest.approx(2 * point.tokens["a"], rel=0.01)
    assert (point.acceptance, point.prefix_hit) == (0.5, 0.25)


def test_the_point_of_a_key_is_made_of_its_own_requests(traffic: Traffic) -> None:
    traffic.request("a")
    traffic.request("b")
    part = traffic.own.since(Known(), time.time(), 0.0)
    (point,) = key_points(part.samples, "a", [row for row in part.ended if row.key == "a"])
    assert set(point.tokens) == {"a"}
    assert point.rate == pytest.approx(part.samples[0].rate / 2, rel=0.01)
    assert point.prefix_hit is None  # no usage was recorded with the request
    assert (point.in_flight, point.queue) == (0, 0)


def test_a_reader_gets_what_it_does_not_have(traffic: Traffic) -> None:
    traffic.request()
    first = traffic.own.since(Known(), 100.0, 0.0)
    assert (len(first.ended), len(first.samples), first.number) == (1, 1, 1)
    again = traffic.own.since(first.known, 100.1, 0.0)
    assert (again.ended, again.samples, again.number) == ((), (), 1)
    assert len(traffic.own.since(Known("another process", 9, 200), 100.2, 0.0).ended) == 1


def test_records_are_bounded(traffic: Traffic) -> None:
    traffic.request()
    first = traffic.own.since(Known(), 100.0, 0.0)
    for _ in range(KEPT + 100):
        traffic.request()
    assert len(traffic.recent.ended) == KEPT
    assert not traffic.recent.in_flight
    assert len(traffic.own.since(first.known, 101.0, 0.0).ended) == SHOWN
    for _ in range(SHOWN + 50):
        traffic.recent.begin(request("x"), time.perf_counter())
    part = traffic.own.since(first.known, 102.0, 0.0)
    assert (len(part.in_flight), part.is_all) == (SHOWN, False)
