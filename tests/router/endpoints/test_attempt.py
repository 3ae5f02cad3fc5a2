"""One try of a request: everything that is taken for it is given back, however it ends."""

import contextlib
import time

import pytest
from router_support.policies import REQUEST, endpoints

from blade_router.endpoints.attempt import Attempt
from blade_router.endpoints.breaker import CONSECUTIVE_FAILURES
from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies import Choice
from blade_router.request.usage import Usage


class RecordedChoice(Choice):
    """A choice that records how its attempt went."""

    __slots__ = ("events",)

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint, "test")
        self.events: list[object] = []

    def sent(self) -> None:
        self.events.append("sent")

    def kept_waiting(self) -> None:
        self.events.append("kept waiting")

    def ended(self, usage: Usage | None) -> None:
        self.events.append(usage)


class FakeClient:
    """A client whose request is never aborted."""

    def __init__(self) -> None:
        self.detached = 0
        self.slow = False

    def detach(self) -> None:
        self.detached += 1


def attempt_of(endpoint: Endpoint) -> tuple[Attempt, RecordedChoice, FakeClient]:
    choice, client = RecordedChoice(endpoint), FakeClient()
    return Attempt(choice, REQUEST, client), choice, client  # type: ignore[arg-type]


def make_half_open(endpoint: Endpoint) -> None:
    breaker = endpoint.health.breaker
    for _ in range(CONSECUTIVE_FAILURES):
        breaker.fail(time.monotonic())
    breaker.open_until = time.monotonic()  # not long ago: the clock may have begun with this machine, minutes ago
    assert breaker.state(time.monotonic()) == "half-open"


@pytest.mark.interpreted
@pytest.mark.parametrize("fails", [False, True])
async def test_an_attempt_gives_back_what_it_took(fails: bool) -> None:
    (endpoint,) = endpoints(1)
    make_half_open(endpoint)
    attempt, choice, client = attempt_of(endpoint)
    with pytest.raises(RuntimeError) if fails else contextlib.nullcontext():
        with attempt:
            assert (endpoint.in_flight, endpoint.health.breaker.probing) == (1, True)
            assert not endpoint.health.breaker.allows(time.monotonic()), "one probe at a time"
            if fails:
                raise RuntimeError
    assert (endpoint.in_flight, endpoint.health.breaker.probing) == (0, False)
    assert choice.events == ["sent", REQUEST.usage]
    assert client.detached == 1


@pytest.mark.interpreted
async def test_that_a_client_read_slowly_is_told_before_the_end() -> None:
    (endpoint,) = endpoints(1)
    attempt, choice, client = attempt_of(endpoint)
    with attempt:
        client.slow = True
    assert choice.events == ["sent", "kept waiting", REQUEST.usage]


@pytest.mark.interpreted
async def test_a_probe_that_is_judged_ends_once() -> None:
    (endpoint,) = endpoints(1)
    make_half_open(endpoint)
    breaker = endpoint.health.breaker
    first, _, _ = attempt_of(endpoint)
    with first:
        first.end_probe()
        assert breaker.allows(time.monotonic())
        second, _, _ = attempt_of(endpoint)
        with second:
            assert breaker.probing
            first.end_probe()
            assert breaker.probing, "the probe of another attempt"
        assert not breaker.probing
    assert endpoint.in_flight == 0


@pytest.mark.interpreted
async def test_a_choice_that_fails_leaves_nothing_in_flight() -> None:
    class FailingChoice(RecordedChoice):
        def sent(self) -> None:
            raise KeyError("removed")

    (endpoint,) = endpoints(1)
    attempt = Attempt(FailingChoice(endpoint), REQUEST, FakeClient())  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="removed"):
        with attempt:
            raise AssertionError("not entered")
    assert endpoint.in_flight == 0
