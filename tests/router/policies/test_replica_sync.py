"""Router replica sync: what is told, what is believed of it, and what is forgotten."""

import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blade_protocol.routing import EndpointConfig
from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies import Policy, PolicyOptions, make_policy
from blade_router.policies.auto import Auto
from blade_router.policies.fleet_times import FleetTimes
from blade_router.policies.prefix_cache.prefix_index import PrefixIndex
from blade_router.policies.replica_sync import messages
from blade_router.policies.replica_sync.outgoing import Outgoing
from blade_router.policies.replica_sync.siblings import MAX_BATCHES, MAX_OPEN, SILENT_SECONDS, Siblings
from blade_router.policies.sync_log import MAX_EVENTS, EndedEvent, Event, SyncLog
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
    own.apply(other.take()[0])
    prefill = own.endpoints[0].prefill
    assert (own.matches(), prefill.open, own.log.synced) == ([3, 0], 1, 1)
    assert prefill.wait(own.now, 1) == pytest.approx(3 * prefill.block)
    own.now += 0.5
    other.first_byte(number, own.now)
    own.apply(other.take()[0], 2)
    assert (prefill.open, prefill.wait(own.now, 1)) == (0, 0.0)
    own.now += 1.5
    other.ended(number, own.now, 2.0, 1.5, Usage(12, 100, 0))
    own.apply(other.take()[0], 3)
    assert (prefill.service, prefill.token) == (2.0, 0.015)
    assert own.matches() == [3, 0]


def test_what_failed_elsewhere_leaves_nothing() -> None:
    own, other = Fixture(), SyncLog()
    other.active = True
    other.ended(sent(other), 100.0, 0.1, 0.0, None)
    own.apply(other.take()[0])
    assert (own.matches(), own.endpoints[0].prefill.open) == ([0, 0], 0)


def test_a_batch_that_comes_twice_changes_nothing() -> None:
    own, other = Fixture(), SyncLog()
    other.active = True
    sent(other)
    events = other.take()[0]
    own.apply(events)
    own.apply(events)
    assert own.endpoints[0].prefill.open == 1


@pytest.mark.parametrize("sequence", [3, 9])
def test_a_gap_forgets_what_is_open(sequence: int) -> None:
    own, other = Fixture(), SyncLog()
    other.active = True
    sent(other)
    own.apply(other.take()[0])
    own.apply([], sequence)
    assert (own.endpoints[0].prefill.open, own.matches(), own.log.synced) == (0, [0, 0], 1)


def test_a_silent_sibling_is_guessed_again() -> None:
    own, other = Fixture(), SyncLog()
    other.active = True
    sent(other)
    own.apply(other.take()[0])
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
    own.apply(other.take()[0], salt=[1, 2])
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
        own.apply(other.take()[0], sequence)
    assert own.endpoints[0].prefill.open == MAX_OPEN
    assert own.siblings.ignored == 11 + 11 * 500 - MAX_OPEN


def test_a_flood_of_messages_is_not_read() -> None:
    own, other = Fixture(), SyncLog()
    other.active = True
    for sequence in range(0, 4 * MAX_BATCHES, 2):  # with gaps
        sent(other)
        own.apply(other.take()[0], sequence)
    assert own.siblings.received == MAX_BATCHES
    own.now += 1.0
    sent(other)
    own.apply(other.take()[0], 4 * MAX_BATCHES)
    assert own.siblings.received == MAX_BATCHES + 1


def test_the_log_drops_the_oldest() -> None:
    log = SyncLog()
    sent(log)
    assert not log.take()[0]  # nobody to tell it
    log.active = True
    for _ in range(MAX_EVENTS + 3):
        sent(log)
    assert (log.dropped, len(log.take()[0])) == (3, MAX_EVENTS)


def test_a_message_has_room_for_the_newest() -> None:
    log = SyncLog()
    log.active = True
    for _ in range(200):
        log.sent(1.0, "e0", 1.0, 0, False, [7] * 4000)
    log.first_byte(9, 2.0)
    packed, left_out = messages.pack(log.take()[0], 2.0)
    batch = messages.Batch(1, "a", "a", messages.SALT, 1, packed)
    assert len(messages.encode_batch(batch)) <= messages.MAX_BYTES
    assert left_out > 100
    assert isinstance(packed[-1], messages.FirstByte)


def test_with_all_routers_in_sync_nothing_is_guessed() -> None:
    own = Fixture()
    policy, request = policy_of(own), stream("x" * 3000)
    assert policy.choose(own.endpoints, request).reason.endswith(" home")
    own.apply([])
    assert not policy.choose(own.endpoints, request).reason.endswith(" home")
    choice = policy.choose(own.endpoints, request)
    choice.sent()
    choice.first_byte()
    choice.ended(None)
    assert [type(event).__name__ for event in own.log.take()[0]] == ["SentEvent", "FirstByteEvent", "EndedEvent"]


def policy_of(own: Fixture, *, sync: bool = True) -> Policy:
    """The policy of one of two routers."""
    return make_policy(
        "auto",
        PolicyOptions(
            index=own.index,
            replicas=lambda: 2,
            siblings=own.siblings if sync else None,
            clock=lambda: own.now,
            rng=random.Random(1),
        ),
    )


def stream(text: str) -> ClientRequest:
    message = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True}
    body = msgspec.json.encode(message)
    return ClientRequest("POST", "/v1/chat/completions", parse_fields(body), body, b"id")


def test_a_request_that_ends_before_its_first_byte_was_not_decoding() -> None:
    own, sibling = Fixture(), Fixture()
    own.now = sibling.now = 1e6  # a machine that has been up for 11 days
    choice = policy_of(own).choose(own.endpoints, stream("x" * 3000))
    choice.sent()
    own.now += 2.0
    choice.ended(None)
    events = own.log.take()[0]
    [_, ended] = events
    assert isinstance(ended, EndedEvent)
    assert (ended.seconds, ended.decoding) == (2.0, 0.0)
    sibling.apply(events)
    assert sibling.siblings.received == 2


def test_no_event_costs_a_batch() -> None:
    own, other = Fixture(), SyncLog()
    other.active = True
    other.sent(-1e9, "e" * 5000, 1e9, -1, False, CHAIN)
    number = other.sent(float("nan"), "e0", float("nan"), 1 << 60, True, CHAIN * 1000)
    other.first_byte(number, 1e12)
    other.ended(number, 1e12, 1e9, float("inf"), Usage(1 << 60, -1, 1 << 60))
    own.apply(other.take()[0])
    assert own.siblings.received == 4


def told(own: Fixture, outgoing: Outgoing) -> None:
    own.siblings.apply(messages.decode_batch(messages.encode_batch(outgoing.batch(own.now))))


@pytest.mark.parametrize("lost", ["overflow", "no room", "inactive"])
def test_events_that_are_lost_before_they_are_sent_leave_nothing_open(lost: str) -> None:
    """The sender stays alive, and all its requests end: it could not say so of each."""
    own, other = Fixture(), SyncLog()
    other.active = True
    outgoing = Outgoing(other, "a", "a")
    begun = [sent(other) for _ in range(50)]
    told(own, outgoing)
    assert own.endpoints[0].prefill.open == 50
    other.active = lost != "inactive"
    for number in begun:
        other.ended(number, own.now, 1.0, 0.0, None)
    other.active = True
    more = []
    if lost == "overflow":
        more = [other.sent(own.now, "e0", 1.0, 0, False, []) for _ in range(MAX_EVENTS)]
    elif lost == "no room":
        more = [other.sent(own.now, "e0", 1.0, 0, False, [7] * 1000) for _ in range(50)]
    told(own, outgoing)
    for number in more:
        other.ended(number, own.now, 1.0, 0.0, None)
    told(own, outgoing)
    (sibling,) = own.siblings._siblings.values()
    assert (own.endpoints[0].prefill.open, sibling.open) == (0, {})
    told(own, outgoing)
    assert outgoing.sequence > 4, "a number is skipped"


def test_siblings_that_hash_otherwise_leave_homes_as_they_are_without_sync() -> None:
    """Their queues are known, but not where they send which prompt."""
    own, alone, other = Fixture(), Fixture(), SyncLog()
    in_sync, without = policy_of(own), policy_of(alone, sync=False)
    other.active = True
    sent(other)
    own.apply(other.take()[0], salt=[1, 2])
    assert (own.log.synced, own.log.alike) == (1, 0)
    for number in range(20):
        request = stream(f"{number} " * 1000)
        choice, expected = in_sync.choose(own.endpoints, request), without.choose(alone.endpoints, request)
        assert choice.reason.endswith(" home")
        assert choice.endpoint.name == expected.endpoint.name
    own.now += 0.1
    own.apply([], 2)
    assert (own.log.synced, own.log.alike) == (1, 1)
    assert not in_sync.choose(own.endpoints, stream("y" * 3000)).reason.endswith(" home")


def test_the_queues_of_siblings_that_hash_otherwise_are_not_guessed() -> None:
    own, other = Fixture(), SyncLog()
    policy = policy_of(own)
    other.active = True
    sent(other)
    own.apply(other.take()[0], salt=[1, 2])
    prefill = own.endpoints[0].prefill
    assert prefill.open == 1
    scores = policy.scores(own.endpoints, stream("x"))
    assert scores["e0"]["wait_ms"] == pytest.approx(prefill.wait(own.now, 1) * 1e3)


def test_a_cut_prompt_says_nothing_of_the_size_of_a_cache() -> None:
    """Of 2,000 blocks 1,000 were cached: of the first 1,024, which are known here, almost all."""
    own, other = Fixture(), SyncLog()
    other.active = True
    for sequence in range(1, 4):
        number = other.sent(own.now, "e0", 1000.0, 1000, False, range(2000))
        other.first_byte(number, own.now)
        other.ended(number, own.now, 1.0, 0.5, Usage(2000 * 64, 10, 1000 * 64))
        own.apply(other.take()[0], sequence)
    cache = own.index._caches[own.endpoints[0]]
    assert own.index.match(range(1024), own.endpoints) == [1024, 0]
    assert (cache.unit, cache.clock) == (0.0, 1024)


def test_blocks_of_open_prompts_are_bounded() -> None:
    own, other, chain = Fixture(), SyncLog(), list(range(1024))
    other.active = True

    def insertions() -> int:
        return sum(each.insertion is not None for one in own.siblings._siblings.values() for each in one.open.values())

    numbers: list[int] = []
    for sender in "abcde":
        for sequence in range(1, 27):
            numbers += [other.sent(own.now, "e0", 1.0, 1023, False, chain) for _ in range(10)]
            own.apply(other.take()[0], sequence, sender)
        assert insertions() == min(256 * "_abcde".index(sender), 1024)
    assert own.endpoints[0].prefill.open == len(numbers) == 1300
    for number in numbers[:260]:
        other.ended(number, own.now, 1.0, 0.0, None)
    own.apply(other.take()[0], 27, "a")
    assert (insertions(), own.siblings._siblings["a"].held) == (768, 0)
    own.now += 2 * SILENT_SECONDS
    own.siblings.expire()
    assert (own.siblings._held, own.endpoints[0].prefill.open) == (0, 0)


@pytest.mark.parametrize("whole", [False, True])
def test_first_bytes_of_siblings_teach_no_rate(whole: bool) -> None:
    own, other = Fixture(), SyncLog()
    other.active = True
    prefill = own.endpoints[0].prefill
    for _ in range(10):
        prefill.first_byte(own.now + 0.1, prefill.sent(own.now, 0.5, whole), 0.5, 0, whole)
        own.now += 1.0
    learned = (prefill.block, prefill.samples, prefill.fixed, prefill.delay)
    for sequence in range(1, 10):
        number = other.sent(own.now, "e0", 50.0, 0, whole, CHAIN)
        own.apply(other.take()[0], 2 * sequence)
        own.now += 0.8
        other.first_byte(number, own.now)
        own.apply(other.take()[0], 2 * sequence + 1)
    assert (prefill.block, prefill.samples, prefill.fixed, prefill.delay) == learned
    assert prefill.open == 0


def test_of_two_the_one_that_warms_up_gets_its_share() -> None:
    own = Fixture()
    own.apply([])
    policy = policy_of(own)
    assert isinstance(policy, Auto)
    slow, other = own.endpoints
    slow.health.weight = 0.5
    slow.prefill.placed, other.prefill.placed = 60.0, 100.0
    chosen = [policy._less_placed_of_two([0, 1], own.endpoints) for _ in range(40)]
    assert sum(chosen) > 20, "60 blocks are more than half of 100"


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
            own.apply(log.take()[0], sequences[sender], sender)
        own.now += 0.05 * blocks
        waiting = sum(each.waits for one in own.siblings._siblings.values() for each in one.open.values())
        assert sum(endpoint.prefill.open for endpoint in own.endpoints) == waiting
    own.now += 2 * SILENT_SECONDS
    own.siblings.expire()
    assert [endpoint.prefill.open for endpoint in own.endpoints] == [0, 0]
    assert own.index._pending == 0
