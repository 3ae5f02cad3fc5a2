"""The exact index: names learnt from answers, caches followed by events, and a bound on both."""

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
from blade_router.endpoints import Endpoint
from blade_router.engines import KvIndex, followers
from blade_router.engines.holders import Holders
from blade_router.engines.kv_index import SETTLED_AFTER
from blade_router.policies.source import Chain, Placement
from blade_router.usage import Usage


class Believer:
    """The approximate source: believes for ever in what was sent."""

    def __init__(self) -> None:
        self.sent_to: dict[Endpoint, set[int]] = {}

    def match(self, chain: Chain, endpoints: Sequence[Endpoint]) -> list[int]:
        counts = []
        for endpoint in endpoints:
            known = self.sent_to.get(endpoint, set())
            counts.append(next((number for number, block in enumerate(chain) if block not in known), len(chain)))
        return counts

    def sent(self, chain: Chain, endpoint: Endpoint, matched: int) -> Placement:
        assert self.match(chain, [endpoint]) == [matched], "its own belief"
        self.sent_to.setdefault(endpoint, set()).update(chain)
        return Placement()

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
    return KvIndex(Believer(), clock=clock)


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


async def test_text_that_nobody_named_and_engines_that_tell_nothing_are_guessed(index: KvIndex) -> None:
    await fill(index, A, 1)
    chain = [10, 20]
    assert index.match(chain, [A, B]) == [0, 0]
    for endpoint in (A, B):
        placement = index.sent(chain, endpoint, 0)
        placement.first_byte()
        placement.ended(USAGE)
    assert index.match(chain, [A, B, C]) == [2, 2, 0]
    index.learn(chain, header(1, 2))
    index._settling.clear()
    index._copies[A].coming.clear()
    assert index.match(chain, [A, B, C]) == [1, 2, 0]
    index.set_live(A, False)
    assert index.match(chain, [A, B]) == [2, 2], "no news: no knowledge"
    index.set_live(A, True)
    index.removed(B)
    assert index.match(chain, [A, B]) == [1, 0]
    index.forget(A)
    assert index.match(chain, [A]) == [2]


async def test_a_prompt_on_its_way_counts_until_the_engine_has_told_of_it(index: KvIndex, clock: Clock) -> None:
    await fill(index, A)
    chain = [10, 20]
    index.learn(chain, header(1, 2))
    assert index.match(chain, [A]) == [0]
    first, second = index.sent(chain, A, 0), index.sent(chain, A, 2)
    assert index.match(chain, [A]) == [2], "the second of a burst follows the first"
    first.first_byte()
    first.ended(USAGE)
    clock.now += SETTLED_AFTER / 2
    assert index.match(chain, [A]) == [2]
    index.apply(A, batch(2, stored=[1]))
    clock.now += SETTLED_AFTER
    assert index.match(chain, [A]) == [1], "from here on only what it told"
    second.ended(None)
    third = index.sent(chain, A, 1)
    assert index.match(chain, [A]) == [2]
    third.ended(None)  # never answered
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
async def test_a_header_that_makes_no_sense_teaches_nothing(index: KvIndex, value: bytes) -> None:
    await fill(index, A)
    index.learn([1, 2], value)
    assert index.wanted([1, 2])


async def test_names_are_asked_for_while_they_are_of_use(index: KvIndex) -> None:
    chain = [10, 20]
    assert not index.wanted(chain), "no engine tells anything"
    await fill(index, A)
    assert index.wanted(chain)
    assert not index.wanted([])
    index.learn(chain, header(1, 2))
    index.apply(A, batch(2, stored=[1, 2]))
    assert not index.wanted(chain)
    index.apply(A, batch(3, removed=[2]))
    assert index.wanted(chain), "perhaps engines have other names by now"


async def test_memory_is_bounded_and_what_is_used_stays() -> None:
    index = KvIndex(Believer(), most_bytes=3 * 128 * 2 * 100)
    await fill(index, A, 1)
    index.learn([1], header(1))
    for block in range(2, 2_000):
        index.learn([block], header(block))
        assert index.match([1], [A]) == [1]
        assert len(index._names) + len(index._older) <= 200
    index.apply(A, batch(2, stored=range(10_000)))
    assert len(index._holders) <= 2 * 3 * 128 * 2 * 100 // 3 // 112


@given(st.lists(st.tuples(st.sampled_from(["add", "discard", "retire", "wash"]), st.integers(0, 2), st.integers(0, 9))))
def test_holders_are_like_one_set_for_each(calls: list[tuple[str, int, int]]) -> None:
    holders = Holders(1 << 20)
    bits = [holders.new_bit() for _ in range(3)]
    sets: list[set[int]] = [set() for _ in range(3)]
    for call, who, digest in calls:
        if call == "add":
            holders.add(bits[who], [digest])
            sets[who].add(digest)
        elif call == "discard":
            holders.discard(bits[who], [digest])
            sets[who].discard(digest)
        elif call == "retire":
            holders.retire(bits[who])
            bits[who] = holders.new_bit()
            sets[who] = set()
        else:
            holders.wash()
        assert len(set(bits)) == 3
        for each in range(10):
            found = holders.bits.get(each, 0)
            assert [bool(found & bit) for bit in bits] == [each in members for members in sets]
    while holders.wash():
        pass
    assert len(holders) == len(set().union(*sets)), "nothing is left of those who went"
    assert holders.new_bit() <= 8, "bits are used again"


async def test_washing_takes_little_at_a_time() -> None:
    holders = Holders(64 << 20)
    gone = holders.new_bit()
    holders.add(gone, range(100_000))
    holders.retire(gone)
    left = []
    while holders.wash():
        left.append(len(holders))
    assert all(before - after <= 4_096 for before, after in itertools.pairwise(left))
    assert left[-1] == 0


async def test_the_index_follows_an_engine_through_gaps_breaks_and_new_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "FIRST_PAUSE", 0.01)
    rng = random.Random(1)
    names = [name(number) for number in range(400)]
    async with MockEngine("a") as engine, InternalPort() as port:
        config = EndpointConfig(url=engine.url, name="a", internal_url=port.url)
        async with serving(endpoints=(config,), wait=False) as running:
            endpoint = running.router.endpoints.all[0]
            index = running.router.followers.index = KvIndex(Believer())
            cleared: list[Endpoint] = []
            monkeypatch.setattr(running.router.followers, "_cleared", cleared.append)

            def is_exact() -> bool:
                if index.position(endpoint) != (port.state.epoch, port.sequence):
                    return False
                bit = index._copies[endpoint].bit
                held = {each for each in names if index._holders.bits.get(int.from_bytes(each, "little"), 0) & bit}
                return held == port.cached

            await eventually(lambda: port.listeners)
            for turn in range(60):
                stored = set(rng.sample(names, 20))
                removed = set(rng.sample(sorted(port.cached), min(len(port.cached), 18))) - stored
                kind = rng.choice(["told", "told", "told", "lost", "broken", "restarted"])
                if kind == "restarted":
                    port.restart()
                port.change(stored, removed, tell=kind == "told")
                if kind == "broken":
                    port.hang_up()
                if turn % 6 == 5:
                    await eventually(lambda: port.listeners)
                    port.change({names[turn]}, set())  # a gap shows with the next batch
                    await eventually(is_exact)
                await asyncio.sleep(0)
            asked = port.asked["/internal/kv"]
            for _ in range(5):
                port.hang_up()
                await eventually(lambda: port.listeners)
                port.change(set(rng.sample(names, 3)), set())
                await eventually(is_exact)
            assert port.asked["/internal/kv"] == asked, "nothing was missed, so nothing is fetched anew"


async def test_an_index_that_comes_later_is_filled_though_nothing_changes() -> None:
    async with MockEngine("a") as engine, InternalPort() as port:
        port.change({name(1), name(2)}, set())
        config = EndpointConfig(url=engine.url, name="a", internal_url=port.url)
        async with serving(endpoints=(config,), wait=False) as running:
            endpoint = running.router.endpoints.all[0]
            await eventually(lambda: endpoint.models)
            assert port.asked["/internal/kv"] == 0, "without an index nobody wants it"
            index = running.router.followers.index = KvIndex(Believer())
            for writer in port.listeners:
                writer.write(chunk(b": alive\n\n"))
            await eventually(lambda: index.position(endpoint) == ("e", 1))
            index.learn([10, 20], header(1, 2))
            assert index.match([10, 20], [endpoint]) == [2]


async def test_an_old_engine_without_a_prompt_cache_to_tell_of_is_followed_all_the_same() -> None:
    async with MockEngine("a") as engine, InternalPort(running=4) as port:
        port.statuses["/internal/kv"] = 404
        config = EndpointConfig(url=engine.url, name="a", internal_url=port.url)
        async with serving(endpoints=(config,), wait=False) as running:
            running.router.followers.index = KvIndex(Believer())
            endpoint = running.router.endpoints.all[0]
            await eventually(lambda: endpoint.running == 4)
            port.set(running=5)
            await eventually(lambda: endpoint.running == 5)
            await eventually(lambda: port.asked["/internal/kv"])
            port.set(running=6)
            await eventually(lambda: endpoint.running == 6)
            assert (port.asked["/internal/events"], port.asked["/internal/kv"]) == (1, 1)
            assert running.router.followers.index.match([1], [endpoint]) == [0]


async def test_a_batch_that_is_none_costs_the_connection_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "FIRST_PAUSE", 0.01)
    async with MockEngine("a") as engine, InternalPort() as port:
        config = EndpointConfig(url=engine.url, name="a", internal_url=port.url)
        async with serving(endpoints=(config,), wait=False) as running:
            index = running.router.followers.index = KvIndex(Believer())
            endpoint = running.router.endpoints.all[0]
            await eventually(lambda: port.listeners)
            port.set(running=1)
            await eventually(lambda: index.position(endpoint) == ("e", 0))
            port.tell(KVBatch(sequence=1, stored=b"short"))
            await eventually(lambda: port.asked["/internal/events"] == 2)
            port.change({name(1)}, set())
            await eventually(lambda: index.position(endpoint) == ("e", 1))
            index.learn([10], header(1))
            assert index.match([10], [endpoint]) == [1]


async def test_an_index_that_is_taken_away_forgets_and_is_filled_anew_when_it_returns() -> None:
    async with MockEngine("a") as engine, InternalPort() as port:
        port.change({name(1)}, set())
        config = EndpointConfig(url=engine.url, name="a", internal_url=port.url)
        async with serving(endpoints=(config,), wait=False) as running:
            endpoint = running.router.endpoints.all[0]
            following = running.router.followers
            index = following.index = KvIndex(Believer())
            await eventually(lambda: port.listeners)
            port.set(running=1)
            await eventually(lambda: index.position(endpoint) == ("e", 1))
            index.learn([10], header(1))
            following.index = None
            assert index.position(endpoint) is None
            port.change(set(), {name(1)})
            port.set(running=2)
            await eventually(lambda: endpoint.running == 2)
            following.index = index
            assert index.match([10], [endpoint]) == [0], "nobody knows"
            port.set(running=3)
            await eventually(lambda: index.position(endpoint) == ("e", port.sequence))
            assert index.match([10], [endpoint]) == [0]


async def test_a_snapshot_that_is_being_taken_in_is_forgotten_too() -> None:
    index = KvIndex(Believer())
    taking = asyncio.create_task(index.replace(A, KVSnapshot(epoch="e", sequence=1, digests=name(1))))
    await asyncio.sleep(0)
    index.forget_all()
    await taking
    assert index.position(A) is None
