"""Router replica sync: what is told, what is believed of it, and what is forgotten."""

import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blade_protocol.routing import EndpointConfig
from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies import PolicyOptions, make_policy
from blade_router.policies.fleet_times import FleetTimes
from blade_router.policies.prefix_cache.prefix_index import PrefixIndex
from blade_router.policies.replica_sync import messages
from blade_router.policies.replica_sync.siblings import MAX_BATCHES, MAX_OPEN, SILENT_SECONDS, Siblings
from blade_router.policies.sync_log import MAX_EVENTS, Event, SyncLog
from blade_router.request.parse import parse_fields
from blade_router.request.request import ClientRequest
from blade_router.request.usage import Usage

CHAIN = [-(1 << 63), 5, (1 << 63) - 1]


class Fixture:
    """A router with two engines, and a clock that is set."""

    def __init__(self) -> None:
        self.now = 100.0
        self.endpoints = [Endpoint(EndpointConfig(url=f"http://10.0.0.{at}:80", name=f"e{at}")) for at in range(2)]
        self.log = SyncLog()
        self.log.active = True
        self.index = PrefixIndex()
        self.siblings = Siblings(self.log, lambda: self.endpoints, lambda: self.now)
        self.siblings.attach(self.index, FleetTimes())

    def apply(
        self,
        events: Sequence[Event],
        sequence: int = 1,
        sender: str = "a",
        salt: Sequence[int] = tuple(messages.SALT),
        version: int = 1,
    ) -> None:
        packed, _ = messages.pack(events, self.now)
        batch = messages.Batch(version, sender, sender, list(salt), sequence, packed)
        self.siblings.apply(messages.decode_batch(messages.encode_batch(batch)))

    def matches(self) -> list[int]:
        return self.index.match(CHAIN, self.endpoints)


def sent(log: SyncLog, endpoint: str = "e0", at: float = 100.0) -> int:
    return log.sent(at, endpoint, 3.0, 0, False, CHAIN)


def test_a_request_of_a_sibling_counts_like_an_own_one() -> None:
    own, other = Fixture(), SyncLog()
    other.active = True
    number = sent(other)
    own.apply(other.take())
    prefill = own.endpoints[0].prefill
    assert (own.matches(), prefill.open, own.log.synced) == ([3, 0], 1, 1)
    assert prefill.wait(own.now, 1) == pytest.approx(3 * prefill.block)
    own.now += 0.5
    other.first_byte(number, own.now)
    own.apply(other.take(), 2)
    assert (prefill.open, prefill.wait(own.now, 1)) == (0, 0.0)
    own.now += 1.5
    other.ended(number, own.now, 2.0, 1.5, Usage(12, 100, 0))
    own.apply(other.take(), 3)
    assert (prefill.service, prefill.token) == (2.0, 0.015)
    assert own.matches() == [3, 0]


def test_what_failed_elsewhere_leaves_nothing() -> None:
    own, other = Fixture(), SyncLog()
    other.active = True
    other.ended(sent(other), 100.0, 0.1, 0.0, None)
    own.apply(other.take())
    assert (own.matches(), own.endpoints[0].prefill.open) == ([0, 0], 0)


def test_a_batch_that_comes_twice_changes_nothing() -> None:
    own, other = Fixture(), SyncLog()
    other.active = True
    sent(other)
    events = other.take()
    own.apply(events)
    own.apply(events)
    assert own.endpoints[0].prefill.open == 1


@pytest.mark.parametrize("sequence", [3, 9])
def test_a_gap_forgets_what_is_open(sequence: int) -> None:
    own, other = Fixture(), SyncLog()
    other.active = True
    sent(other)
    own.apply(other.take())
    own.apply([], sequence)
    assert (own.endpoints[0].prefill.open, own.matches(), own.log.synced) == (0, [0, 0], 1)


def test_a_silent_sibling_is_guessed_again() -> None:
    own, other = Fixture(), SyncLog()
    other.active = True
    sent(other)
    own.apply(other.take())
    own.now += SILENT_SECONDS / 2
    own.siblings.expire()
    assert own.log.synced == 1
    own.now += SILENT_SECONDS
    own.siblings.expire()
    assert (own.log.synced, own.endpoints[0].prefill.open, own.matches()) == (0, 0, [0, 0])


def test_another_hash_key_teaches_times_only() -> None:
    own, other = Fixture(), SyncLog()
    other.active = True
    sent(other)
    own.apply(other.take(), salt=[1, 2])
    assert (own.endpoints[0].prefill.open, own.matches()) == (1, [0, 0])


def test_another_version_and_nonsense_are_refused() -> None:
    own = Fixture()
    with pytest.raises(ValueError, match="version 2"):
        own.apply([], version=2)
    event = [0, 1, 0.0, "e0", 3.0, 0, False, b""]
    for place, value in ((1, -1), (2, -1.0), (2, float("nan")), (4, float("inf")), (4, 1e9), (7, bytes(9000)), (0, 7)):
        bad = [*event[:place], value, *event[place + 1 :]]
        message = msgspec.msgpack.encode([1, "a", "a", [], 1, [bad]])
        with pytest.raises(ValueError, match=r"."):
            messages.decode_batch(message)
    for message in (b"", b"\xc1", msgspec.msgpack.encode([1, "", "", [], 1, []]), bytes(messages.MAX_BYTES + 1)):
        with pytest.raises(ValueError, match=r"."):
            messages.decode_batch(message)


def test_what_is_followed_is_bounded() -> None:
    own, other = Fixture(), SyncLog()
    other.active = True
    for sequence in range(1, 12):
        for _ in range(500):
            other.sent(100.0, "e0", 1.0, 0, False, [])
        sent(other, "unknown")
        own.apply(other.take(), sequence)
    assert own.endpoints[0].prefill.open == MAX_OPEN
    assert own.siblings.ignored == 11 + 11 * 500 - MAX_OPEN


def test_a_flood_of_messages_is_not_read() -> None:
    own, other = Fixture(), SyncLog()
    other.active = True
    for sequence in range(0, 4 * MAX_BATCHES, 2):  # with gaps
        sent(other)
        own.apply(other.take(), sequence)
    assert own.siblings.received == MAX_BATCHES
    own.now += 1.0
    sent(other)
    own.apply(other.take(), 4 * MAX_BATCHES)
    assert own.siblings.received == MAX_BATCHES + 1


def test_the_log_drops_the_oldest() -> None:
    log = SyncLog()
    sent(log)
    assert not log.take()  # nobody to tell it
    log.active = True
    for _ in range(MAX_EVENTS + 3):
        sent(log)
    assert (log.dropped, len(log.take())) == (3, MAX_EVENTS)


def test_a_message_has_room_for_the_newest() -> None:
    log = SyncLog()
    log.active = True
    for _ in range(200):
        log.sent(1.0, "e0", 1.0, 0, False, [7] * 4000)
    log.first_byte(9, 2.0)
    packed, left_out = messages.pack(log.take(), 2.0)
    batch = messages.Batch(1, "a", "a", messages.SALT, 1, packed)
    assert len(messages.encode_batch(batch)) <= messages.MAX_BYTES
    assert left_out > 100
    assert isinstance(packed[-1], messages.FirstByte)


def test_with_all_routers_in_sync_nothing_is_guessed() -> None:
    own = Fixture()
    options = PolicyOptions(
        index=own.index,
        replicas=lambda: 2,
        siblings=own.siblings,
        clock=lambda: own.now,
        rng=random.Random(1),
    )
    policy = make_policy("auto", options)
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "x" * 3000}], "stream": True})
    request = ClientRequest("POST", "/v1/chat/completions", parse_fields(body), body, b"id")
    assert policy.choose(own.endpoints, request).reason.endswith(" home")
    own.apply([])
    assert not policy.choose(own.endpoints, request).reason.endswith(" home")
    choice = policy.choose(own.endpoints, request)
    choice.sent()
    choice.first_byte()
    choice.ended(None)
    assert [type(event).__name__ for event in own.log.take()] == ["SentEvent", "FirstByteEvent", "EndedEvent"]


@given(st.lists(st.tuples(st.sampled_from("sfegdx"), st.integers(0, 7), st.integers(1, 6)), max_size=80))
def test_nothing_stays_behind_whatever_is_lost(steps: list[tuple[str, int, int]]) -> None:
    """Whatever comes twice, late or never: what waits is what is open, and in the end nothing is."""
    own, others = Fixture(), {"a": SyncLog(), "b": SyncLog()}
    sequences = dict.fromkeys(others, 0)
    for log in others.values():
        log.active = True
    for step, number, blocks in steps:
        sender = "ab"[number & 1]
        log = others[sender]
        if step == "s":
            log.sent(own.now, f"e{number & 1}", blocks, 0, number > 3, list(range(blocks)))
        elif step == "f":
            log.first_byte(blocks, own.now)
        elif step == "e":
            log.ended(blocks, own.now, 1.0, 0.5, Usage(10, 10, 5))
        elif step == "d":
            log.take()
        elif step == "x":
            own.siblings.expire()
        else:
            sequences[sender] += 1 + (blocks > 5)
            own.apply(log.take(), sequences[sender], sender)
        own.now += 0.05 * blocks
        waiting = sum(each.waits for one in own.siblings._siblings.values() for each in one.open.values())
        assert sum(endpoint.prefill.open for endpoint in own.endpoints) == waiting
    own.now += 2 * SILENT_SECONDS
    own.siblings.expire()
    assert [endpoint.prefill.open for endpoint in own.endpoints] == [0, 0]
    assert own.index._pending == 0
