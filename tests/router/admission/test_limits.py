"""Limits hold exactly, at any time one begins to count, and say when they will let a request through."""

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_protocol.routing import Limits
from blade_router.admission.controller import AdmissionController, MeteredAdmission
from blade_router.admission.limits import Quota, Quotas
from blade_router.admission.tokens import Estimate
from blade_router.admission.window import SLOT, WINDOW, WORDS, Window, slot_of
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.http.errors import Refused
from blade_router.request.fields import RoutingFields
from blade_router.request.request import ClientRequest
from blade_router.request.usage import Usage
from blade_router.workers.shared_memory import PrivateRow

NOW = 1000.0


def windows(workers: int) -> list[Window]:
    cells = [memoryview(bytearray(8 * WORDS)).cast("q") for _ in range(workers)]
    return [Window(cells, own) for own in cells]


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),  # the worker
        st.floats(0, 70, allow_nan=False).map(lambda pause: pause if pause > 1 else 0.0),
        st.integers(0, 1000),  # amount
        st.floats(0, 1),  # part of it that is given back
        st.floats(0, 90, allow_nan=False),  # after so long
    ),
    max_size=40,
)


@given(steps=STEPS, start=st.floats(0, 1e6, allow_nan=False))
@settings(max_examples=300, deadline=None)
def test_a_window_is_never_below_the_sliding_minute_and_hardly_above(
    steps: list[tuple[int, float, int, float, float]], start: float
) -> None:
    """Against a list of everything that was ever added."""
    workers = windows(3)
    now = start
    events: list[tuple[float, float, int, int, int]] = []
    added: list[list[float]] = []  # time, amount
    order = itertools.count()
    for worker, pause, amount, part, later in steps:
        now += pause
        events.append((now, next(order), worker, amount, -1))
        events.append((now + later, next(order), worker, int(amount * part), len(added)))
        added.append([now, 0])
    taken = -1
    for moment, _, worker, amount, of in sorted(events):
        slot = slot_of(moment)
        if of < 0:
            taken += 1
            workers[worker].add(amount, slot)
            added[taken][1] = amount
        else:
            workers[worker].give_back(amount, slot_of(added[of][0]), slot)
            added[of][1] -= amount
        least = sum(size for then, size in added if moment - WINDOW < then <= moment)
        most = sum(size for then, size in added if moment - WINDOW - SLOT < then <= moment)
        for window in workers:
            assert least <= window.used(slot) <= most


@given(
    amounts=st.lists(st.tuples(st.floats(0, 20, allow_nan=False), st.integers(1, 500)), min_size=1, max_size=30),
    part=st.floats(0.01, 1),
)
@settings(deadline=None)
def test_the_wait_is_exact(amounts: list[tuple[float, int]], part: float) -> None:
    (window,) = windows(1)
    now = NOW
    for pause, amount in amounts:
        now += pause
        window.add(amount, slot_of(now))
    used = window.used(slot_of(now))
    excess = max(1, int(used * part))
    wait = window.free_in(excess, now)
    assert 0 < wait <= WINDOW + SLOT
    assert window.used(slot_of(now + wait - 1e-3)) > used - excess
    assert window.used(slot_of(now + wait + 1e-6)) <= used - excess


def test_a_worker_started_again_does_not_make_room() -> None:
    cells = [memoryview(bytearray(8 * WORDS)).cast("q") for _ in range(2)]
    here, there = Window(cells, cells[0]), Window(cells, cells[1])
    slot = slot_of(NOW)
    here.add(10, slot)
    there.add(100, slot)
    assert here.used(slot) == 110
    cells[1][:] = memoryview(bytes(8 * WORDS)).cast("q")
    assert here.used(slot) == 10


def quota(**limits: int) -> Quota:
    return Quotas().configure({"key a": Limits(**limits)})["key a"]


def take(quota: Quota, tokens: int, now: float) -> bool:
    slot = slot_of(now)
    if not quota.admits(tokens, slot):
        return False
    quota.take(tokens, slot)
    return True


def test_requests_per_minute() -> None:
    found = quota(requests_per_minute=3)
    assert [take(found, 1, NOW + second) for second in (0, 10, 20, 30)] == [True, True, True, False]
    refusal = found.refusal(1, NOW + 30)
    assert (refusal.status, refusal.code, refusal.kind) == (429, "rate_limit_exceeded", "requests")
    assert refusal.retry_after is not None
    assert not take(found, 1, NOW + 30 + refusal.retry_after - SLOT)
    assert take(found, 1, NOW + 30 + refusal.retry_after)
    assert not take(found, 1, NOW + 30 + refusal.retry_after)


def test_tokens_are_reserved_and_settled() -> None:
    found = quota(tokens_per_minute=1000)
    assert take(found, 600, NOW)
    assert not take(found, 600, NOW)
    found.settle(600, 100, slot_of(NOW), slot_of(NOW + 1))
    assert take(found, 900, NOW + 1), "what was not used is there again"
    found.settle(900, 1500, slot_of(NOW + 1), slot_of(NOW + 2))
    assert not take(found, 1, NOW + 2), "what was used beyond the reservation counts"
    assert not take(found, 1, NOW + 2 + WINDOW - SLOT)
    assert take(found, 1000, NOW + 2 + WINDOW + 2 * SLOT)


def test_a_response_longer_than_a_minute_returns_no_expired_tokens() -> None:
    found = quota(tokens_per_minute=1000)
    assert take(found, 1000, NOW)
    later = NOW + WINDOW + SLOT
    assert take(found, 1000, later)
    found.settle(1000, 0, slot_of(NOW), slot_of(later))
    assert not take(found, 1, later), "its reservation had left the window before"


def test_a_request_above_the_limit_is_not_to_be_retried() -> None:
    refusal = quota(tokens_per_minute=1000).refusal(1001, NOW)
    assert refusal.retry_after is None
    assert (b"x-should-retry", b"false") in refusal.headers
    assert "Limit 1000, Requested 1001" in str(refusal)


def test_concurrent_requests() -> None:
    found = quota(concurrent=2)
    assert [take(found, 1, NOW) for _ in range(3)] == [True, True, False]
    assert found.refusal(1, NOW).retry_after == 1
    found.settle(1, 1, slot_of(NOW), slot_of(NOW))
    assert take(found, 1, NOW)


def test_a_request_that_was_not_let_in_counts_nowhere() -> None:
    found = quota(requests_per_minute=1, tokens_per_minute=10, concurrent=1)
    assert take(found, 10, NOW)
    found.undo(10, slot_of(NOW), slot_of(NOW))
    assert take(found, 10, NOW)


@pytest.mark.interpreted
def test_a_place_is_free_again_whatever_settling_comes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(estimate: Estimate, request: ClientRequest, usage: Usage) -> None:
        raise OverflowError

    class Place:
        left = 0

        def release(self) -> None:
            self.left += 1

    monkeypatch.setattr(Estimate, "learn", fail)
    client_request = ClientRequest("POST", "/v1/completions", RoutingFields(), b"{}", b"r")
    admission = MeteredAdmission(AdmissionController(EndpointSet()), client_request, Estimate(), (), 1, 1, 0)
    admission.queued = place = Place()
    with pytest.raises(OverflowError):
        admission.close(Usage(prompt_tokens=1, completion_tokens=1))
    assert place.left == 1


def headers(quota: Quota, now: float) -> dict[bytes, bytes]:
    return dict(quota.headers(slot_of(now)))


def test_headers_are_openais() -> None:
    found = quota(requests_per_minute=10, tokens_per_minute=1000)
    take(found, 300, NOW)
    assert headers(found, NOW) == {
        b"x-ratelimit-limit-requests": b"10",
        b"x-ratelimit-remaining-requests": b"9",
        b"x-ratelimit-reset-requests": b"62s",
        b"x-ratelimit-limit-tokens": b"1000",
        b"x-ratelimit-remaining-tokens": b"700",
        b"x-ratelimit-reset-tokens": b"62s",
    }
    assert headers(quota(concurrent=3), NOW) == {}


def count(quota: Quota, tokens: int = 1, now: float = NOW) -> int:
    return sum(1 for _ in iter(lambda: take(quota, tokens, now), False))


@pytest.mark.parametrize(("replicas", "passing"), [(1, 10), (2, 5), (3, 4), (20, 1)])
def test_replicas_split_a_limit(replicas: int, passing: int) -> None:
    quotas = Quotas()
    quotas.split(replicas)
    assert count(quotas.configure({"key a": Limits(requests_per_minute=10)})["key a"]) == passing


def test_a_replica_that_comes_or_goes_counts_at_once() -> None:
    quotas = Quotas()
    found = quotas.configure({"key a": Limits(requests_per_minute=10)})["key a"]
    quotas.split(2)
    assert count(found) == 5
    quotas.split(1)
    assert count(found) == 5
    quotas.split(2)
    assert count(found) == 0


def test_a_request_larger_than_a_part_passes_alone() -> None:
    quotas = Quotas()
    quotas.split(2)
    found = quotas.configure({"key a": Limits(tokens_per_minute=1000)})["key a"]
    assert take(found, 800, NOW)
    assert not take(found, 800, NOW)
    refusal = found.refusal(800, NOW)
    assert refusal.retry_after is not None
    assert take(found, 800, NOW + refusal.retry_after)


def test_changed_limits_keep_what_was_counted() -> None:
    quotas = Quotas()
    found = quotas.configure({"key a": Limits(requests_per_minute=10)})["key a"]
    assert count(found) == 10
    assert quotas.configure({"key a": Limits(requests_per_minute=12), "key b": Limits(concurrent=1)})["key a"] is found
    assert count(found) == 2


def test_a_limit_that_goes_away_ends_with_its_last_request() -> None:
    quotas = Quotas()
    found = quotas.configure({"key a": Limits(concurrent=1)})["key a"]
    assert take(found, 5, NOW)
    assert quotas.configure({"key a": Limits()}) == {}
    assert quotas.configure({"key a": Limits(concurrent=1)})["key a"] is found, "still counted"
    assert quotas.configure({}) == {}
    found.settle(5, 5, slot_of(NOW), slot_of(NOW))
    quotas.drop(found)
    assert quotas.configure({"key a": Limits(concurrent=1)})["key a"] is not found


@given(
    asked=st.lists(
        st.tuples(st.floats(0, 30, allow_nan=False), st.integers(1, 400), st.integers(0, 600), st.floats(0, 50)),
        max_size=60,
    )
)
@settings(max_examples=200, deadline=None)
def test_no_minute_has_more_tokens_than_the_limit_and_what_answers_used_beyond_it(
    asked: list[tuple[float, int, int, float]],
) -> None:
    """Any order of arrivals and ends: reserved and settled tokens of every 60 seconds stay within the limit."""
    found = quota(tokens_per_minute=1000, concurrent=1000)
    now = NOW
    arrivals: list[tuple[float, int, int, float]] = []
    for pause, reserved, used, seconds in asked:
        now += pause
        arrivals.append((now, reserved, min(used, reserved), seconds))
    ends: list[tuple[float, int, int, float]] = []
    passed: list[tuple[float, int]] = []

    def settle(until: float) -> Iterable[None]:
        for end, reserved, used, began in sorted(each for each in ends if each[0] <= until):
            found.settle(reserved, used, slot_of(began), slot_of(end))
            ends.remove((end, reserved, used, began))
            yield

    for moment, reserved, used, seconds in arrivals:
        list(settle(moment))
        if take(found, reserved, moment):
            passed.append((moment, used))
            ends.append((moment + seconds, reserved, used, moment))
    for begin, _ in passed:
        assert sum(used for moment, used in passed if begin <= moment < begin + WINDOW) <= 1000


def test_a_row_alone_is_the_same() -> None:
    found = Quota("key a", PrivateRow(2 * WORDS + 1))
    found.set(Limits(requests_per_minute=2), 1)
    assert count(found) == 2
    assert isinstance(found.refusal(1, NOW), Refused)
