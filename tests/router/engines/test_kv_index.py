"""The exact index: names learnt from responses, caches watched by events, and a bound on both."""

import asyncio
import base64
import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_support.engine import MockEngine, chunk
from router_support.internal_port import InternalPort
from router_support.serving import eventually, serving

from blade_protocol.routing import EndpointConfig
from blade_protocol.state import KVBatch, KVSnapshot
from blade_router.endpoints.endpoint import Endpoint
from blade_router.engines import KvIndex, watchers
from blade_router.engines.block_locations import BlockLocations
from blade_router.engines.kv_index import PENDING_GRACE_SECONDS
from blade_router.policies.prefix_cache.interface import Chain, PrefixInsertion
from blade_router.request.usage import Usage


class ApproximateIndex:
    """An approximate index that never evicts."""

    def __init__(self) -> None:
        self.sent_to: dict[Endpoint, set[int]] = {}

    def match(self, chain: Chain, endpoints: Sequence[Endpoint]) -> list[int]:
        counts = []
        for endpoint in endpoints:
            known = self.sent_to.get(endpoint, set())
            counts.append(next((number for number, block in enumerate(chain) if block not in known), len(chain)))
        return counts

    def sent(self, chain: Chain, endpoint: Endpoint, matched: int) -> PrefixInsertion:
        assert self.match(chain, [endpoint]) == [matched], "its own match"
        self.sent_to.setdefault(endpoint, set()).update(chain)
        return PrefixInsertion()

    def removed(self, endpoint: Endpoint) -> None:
        self.sent_to.pop(endpoint, None)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


A, B, C = (Endpoint(EndpointConfig(url=f"http://10.0.0.{number}:80")) for number in range(3))
USAGE = Usage(prompt_tokens=1, completion_tokens=1)


def name(number: int) -> bytes:
    return number.to_bytes(8, "little")


def header(*numbers: int) -> bytes:
    return b"4:" + base64.b64encode(b"".join(map(name, numbers)))


def batch(sequence: int, stored: Sequence[int] = (), removed: Sequence[int] = ()) -> KVBatch:
    return KVBatch(sequence=sequence, stored=b"".join(map(name, stored)), removed=b"".join(map(name, removed)))


async def fill(index: KvIndex, endpoint: Endpoint, *numbers: int, epoch: str = "e", sequence: int = 1) -> None:
    snapshot = KVSnapshot(epoch=epoch, sequence=sequence, digests=b"".join(map(name, numbers)))
    await index.replace(endpoint, snapshot)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def index(clock: Clock) -> KvIndex:
    return KvIndex(ApproximateIndex(), clock=clock)


async def test_what_is_matched_is_what_engines_have(index: KvIndex) -> None:
    await fill(index, A, 1, 2, 3)
    await fill(index, B, 1)
    chain = [10, 20, 30, 40]
    index.learn(chain, header(1, 2, 3, 4))
    assert index.match(chain, [A, B]) == [3, 1]
    assert index.match(chain[:2], [B, A]) == [1, 2]
    index.apply(A, batch(2, stored=[4], removed=[2]))
    assert index.match(chain, [A, B]) == [1, 1], "what is behind a gap is of no use"
    index.apply(A, batch(3, stored=[2]))
    assert index.match(chain, [A, B]) == [4, 1]
    assert index.position(A) == ("e", 3)
    assert index.position(C) is None


async def test_unknown_text_and_engines_without_events_use_the_approximate_index(index: KvIndex) -> None:
    await fill(index, A, 1)
    chain = [10, 20]
    assert index.match(chain, [A, B]) == [0, 0]
    for endpoint in (A, B):
        placement = index.sent(chain, endpoint, 0)
        placement.first_byte()
        placement.ended(USAGE)
    assert index.match(chain, [A, B, C]) == [2, 2, 0]
    index.learn(chain, header(1, 2))
    index._expiring.clear()
    index._caches[A].pending.clear()
    assert index.match(chain, [A, B, C]) == [1, 2, 0]
    index.set_live(A, False)
    assert index.match(chain, [A, B]) == [2, 2], "no events: no knowledge"
    index.set_live(A, True)
    index.removed(B)
    assert index.match(chain, [A, B]) == [1, 0]
    index.forget(A)
    assert index.match(chain, [A]) == [2]


async def test_a_pending_prompt_counts_until_the_engine_has_reported_it(index: KvIndex, clock: Clock) -> None:
    await fill(index, A)
    chain = [10, 20]
    index.learn(chain, header(1, 2))
    assert index.match(chain, [A]) == [0]
    first, second = index.sent(chain, A, 0), index.sent(chain, A, 2)
    assert index.match(chain, [A]) == [2], "the second of a burst follows the first"
    first.first_byte()
    first.ended(USAGE)
    clock.now += PENDING_GRACE_SECONDS / 2
    assert index.match(chain, [A]) == [2]
    index.apply(A, batch(2, stored=[1]))
    clock.now += PENDING_GRACE_SECONDS
    assert index.match(chain, [A]) == [1], "from here on only what it reported"
    second.ended(None)
    third = index.sent(chain, A, 1)
    assert index.match(chain, [A]) == [2]
    third.ended(None)  # no response ever
    assert index.match(chain, [A]) == [1]


async def test_names_are_spread_over_the_text_in_proportion(index: KvIndex) -> None:
    chain = list(range(100, 106))
    index.learn(chain, header(1, 2, 3))
    for numbers, expected in (([], 0), ([1], 3), ([1, 2], 5), ([1, 2, 3], 6)):
        await fill(index, A, *numbers)
        assert index.match(chain, [A]) == [expected]
    index.learn([200], header(11, 12, 13))
    await fill(index, A, 11, 12)
    assert index.match([200], [A]) == [0], "a block of text is there when its last KV block is"


async def test_a_name_that_two_prompts_share_stays(index: KvIndex) -> None:
    await fill(index, A, 1, 2)
    index.learn([100, 101, 102], header(1, 2, 7))
    index.learn([100, 101, 103], header(1, 2, 8, 9, 10, 11))  # by its share, block 101 would be 9
    assert index.match([100, 101, 103], [A]) == [2]
    index.learn([100, 101, 102], header(5, 6, 7))  # another tokenizer: the old names say nothing
    assert index.match([100, 101, 102], [A]) == [0]


@pytest.mark.parametrize("value", [b"", b"4", b"4:", b"4:!!!!", b"4:AAAA", b"x:" + b"A" * 11, "4:é".encode()])
async def test_a_malformed_header_teaches_nothing(index: KvIndex, value: bytes) -> None:
    await fill(index, A)
    index.learn([1, 2], value)
    assert index.wanted([1, 2])


async def test_block_hashes_are_requested_while_they_are_of_use(index: KvIndex) -> None:
    chain = [10, 20]
    assert not index.wanted(chain), "no engine publishes events"
    await fill(index, A)
    assert index.wanted(chain)
    assert not index.wanted([])
    index.learn(chain, header(1, 2))
    index.apply(A, batch(2, stored=[1, 2]))
    assert not index.wanted(chain)
    index.apply(A, batch(3, removed=[2]))
    assert index.wanted(chain), "perhaps engines have other names by now"


async def test_memory_is_bounded_and_what_is_used_stays() -> None:
    index = KvIndex(ApproximateIndex(), max_bytes=3 * 128 * 2 * 100)
    await fill(index, A, 1)
    index.learn([1], header(1))
    for block in range(2, 2_000):
        index.learn([block], header(block))
        assert index.match([1], [A]) == [1]
        assert len(index._hashes) + len(index._old_hashes) <= 200
    index.apply(A, batch(2, stored=range(10_000)))
    assert len(index._locations) <= 2 * 3 * 128 * 2 * 100 // 3 // 112


@given(
    st.lists(st.tuples(st.sampled_from(["add", "discard", "retire", "sweep"]), st.integers(0, 2), st.integers(0, 9)))
)
def test_block_locations_are_like_one_set_for_each_endpoint(calls: list[tuple[str, int, int]]) -> None:
    locations = BlockLocations(1 << 20)
    bits = [locations.new_bit() for _ in range(3)]
    sets: list[set[int]] = [set() for _ in range(3)]
    for call, who, digest in calls:
        if call == "add":
            locations.add(bits[who], [digest])
            sets[who].add(digest)
        elif call == "discard":
            locations.discard(bits[who], [digest])
            sets[who].discard(digest)
        elif call == "retire":
            locations.retire(bits[who])
            bits[who] = locations.new_bit()
            sets[who] = set()
        else:
            locations.sweep()
        assert len(set(bits)) == 3
        for each in range(10):
            found = locations.bits.get(each, 0)
            assert [bool(found & bit) for bit in bits] == [each in members for members in sets]
    while locations.sweep():
        pass
    assert len(locations) == len(set().union(*sets)), "nothing is left of those who went"
    assert locations.new_bit() <= 8, "bits are used again"


async def test_a_sweep_takes_one_batch_at_a_time() -> None:
    locations = BlockLocations(64 << 20)
    gone = locations.new_bit()
    locations.add(gone, range(100_000))
    locations.retire(gone)
    left = []
    while locations.sweep():
        left.append(len(locations))
    assert all(before - after <= 4_096 for before, after in itertools.pairwise(left))
    assert left[-1] == 0


async def test_the_index_stays_exact_through_gaps_disconnects_and_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "INITIAL_BACKOFF", 0.01)
    rng = random.Random(1)
    names = [name(number) for number in range(400)]
    async with MockEngine("a") as engine, InternalPort() as port:
        config = EndpointConfig(url=engine.url, name="a", internal_url=port.url)
        async with serving(endpoints=(config,), wait=False) as running:
            endpoint = running.router.endpoints.all[0]
            index = running.router.engine_watchers.index = KvIndex(ApproximateIndex())
            cleared: list[Endpoint] = []
            monkeypatch.setattr(running.router.engine_watchers, "_cleared", cleared.append)

            def is_exact() -> bool:
                if index.position(endpoint) != (port.state.epoch, port.sequence):
                    return False
                bit = index._caches[endpoint].bit
                held = {each for each in names if index._locations.bits.get(int.from_bytes(each, "little"), 0) & bit}
                return held == port.cached

            await eventually(lambda: port.subscribers)
            for turn in range(60):
                stored = set(rng.sample(names, 20))
                removed = set(rng.sample(sorted(port.cached), min(len(port.cached), 18))) - stored
                kind = rng.choice(["published", "published", "published", "lost", "broken", "restarted"])
                if kind == "restarted":
                    port.restart()
                port.change(stored, removed, publish=kind == "published")
                if kind == "broken":
                    port.hang_up()
                if turn % 6 == 5:
                    await eventually(lambda: port.subscribers)
                    port.change({names[turn]}, set())  # a gap shows with the next batch
                    await eventually(is_exact)
                await asyncio.sleep(0)
            snapshots = port.queries["/internal/kv"]
            for _ in range(5):
                port.hang_up()
                await eventually(lambda: port.subscribers)
                port.change(set(rng.sample(names, 3)), set())
                await eventually(is_exact)
            assert port.queries["/internal/kv"] == snapshots, "nothing was missed, so nothing is fetched anew"


async def test_an_index_that_comes_later_is_filled_though_nothing_changes() -> None:
    async with MockEngine("a") as engine, InternalPort() as port:
        port.change({name(1), name(2)}, set())
        config = EndpointConfig(url=engine.url, name="a", internal_url=port.url)
        async with serving(endpoints=(config,), wait=False) as running:
            endpoint = running.router.endpoints.all[0]
            await eventually(lambda: endpoint.report.models)
            assert port.queries["/internal/kv"] == 0, "without an index nobody wants it"
            index = running.router.engine_watchers.index = KvIndex(ApproximateIndex())
            for writer in port.subscribers:
                writer.write(chunk(b": alive\n\n"))
            await eventually(lambda: index.position(endpoint) == ("e", 1))
            index.learn([10, 20], header(1, 2))
            assert index.match([10, 20], [endpoint]) == [2]


async def test_an_old_engine_without_kv_events_is_watched_all_the_same() -> None:
    async with MockEngine("a") as engine, InternalPort(running=4) as port:
        port.statuses["/internal/kv"] = 404
        config = EndpointConfig(url=engine.url, name="a", internal_url=port.url)
        async with serving(endpoints=(config,), wait=False) as running:
            running.router.engine_watchers.index = KvIndex(ApproximateIndex())
            endpoint = running.router.endpoints.all[0]
            await eventually(lambda: endpoint.report.running == 4)
            port.set(running=5)
            await eventually(lambda: endpoint.report.running == 5)
            await eventually(lambda: port.queries["/internal/kv"])
            port.set(running=6)
            await eventually(lambda: endpoint.report.running == 6)
            assert (port.queries["/internal/events"], port.queries["/internal/kv"]) == (1, 1)
            assert running.router.engine_watchers.index.match([1], [endpoint]) == [0]


async def test_a_malformed_batch_costs_the_connection_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "INITIAL_BACKOFF", 0.01)
    async with MockEngine("a") as engine, InternalPort() as port:
        config = EndpointConfig(url=engine.url, name="a", internal_url=port.url)
        async with serving(endpoints=(config,), wait=False) as running:
            index = running.router.engine_watchers.index = KvIndex(ApproximateIndex())
            endpoint = running.router.endpoints.all[0]
            await eventually(lambda: port.subscribers)
            port.set(running=1)
            await eventually(lambda: index.position(endpoint) == ("e", 0))
            port.publish(KVBatch(sequence=1, stored=b"short"))
            await eventually(lambda: port.queries["/internal/events"] == 2)
            port.change({name(1)}, set())
            await eventually(lambda: index.position(endpoint) == ("e", 1))
            index.learn([10], header(1))
            assert index.match([10], [endpoint]) == [1]


async def test_a_detached_index_is_cleared_and_filled_again_when_it_returns() -> None:
    async with MockEngine("a") as engine, InternalPort() as port:
        port.change({name(1)}, set())
        config = EndpointConfig(url=engine.url, name="a", internal_url=port.url)
        async with serving(endpoints=(config,), wait=False) as running:
            endpoint = running.router.endpoints.all[0]
            engine_watchers = running.router.engine_watchers
            index = engine_watchers.index = KvIndex(ApproximateIndex())
            await eventually(lambda: port.subscribers)
            port.set(running=1)
            await eventually(lambda: index.position(endpoint) == ("e", 1))
            index.learn([10], header(1))
            engine_watchers.index = None
            assert index.position(endpoint) is None
            port.change(set(), {name(1)})
            port.set(running=2)
            await eventually(lambda: endpoint.report.running == 2)
            engine_watchers.index = index
            assert index.match([10], [endpoint]) == [0], "nobody knows"
            port.set(running=3)
            await eventually(lambda: index.position(endpoint) == ("e", port.sequence))
            assert index.match([10], [endpoint]) == [0]


async def test_a_snapshot_that_is_being_taken_in_is_forgotten_too() -> None:
    index = KvIndex(ApproximateIndex())
    taking = asyncio.create_task(index.replace(A, KVSnapshot(epoch="e", sequence=1, digests=name(1))))
    await asyncio.sleep(0)
    index.forget_all()
    await taking
    assert index.position(A) is None
