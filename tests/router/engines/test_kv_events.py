"""KV events of vLLM and SGLang, over ZeroMQ and in both of their formats."""

import msgspec
import pytest
from router_support.engine import MockEngine
from router_support.external_engine import Publisher, models
from router_support.serving import eventually, serving

from blade_protocol.routing import EndpointConfig
from blade_router.endpoints.endpoint import Endpoint
from blade_router.engines.kv_events import CachedBlocks, KvEventSubscriber, events_of


@pytest.fixture(params=[True, False], ids=["maps", "arrays"])
async def publisher(request: pytest.FixtureRequest) -> Publisher:
    return Publisher(maps=request.param)


async def test_events_are_read_in_both_formats(publisher: Publisher) -> None:
    async with publisher:
        payload = publisher.batch(
            publisher.stored(1, 2), publisher.stored(3, medium="CPU"), publisher.removed(1), publisher.cleared()
        )
        found = [(event.kind, event.hashes, event.block_size) for event in events_of(payload)]
        assert found == [
            ("BlockStored", [1, 2], 16),
            ("BlockRemoved", [1], 0),
            ("AllBlocksCleared", [], 0),
        ], "and what lies on other media is left out"


async def test_hashes_may_be_bytes(publisher: Publisher) -> None:
    async with publisher:
        blocks = CachedBlocks()
        blocks.apply(0, publisher.batch(publisher.stored(b"a" * 32, b"b" * 32)))
        blocks.apply(1, publisher.batch(publisher.removed(b"a" * 32)))
        assert (len(blocks), blocks.tokens) == (1, 32)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", *map(msgspec.msgpack.encode, (7, [1, 2], [0.0, [["BlockRemoved", [[]]]]]))],
)
def test_what_is_no_batch_is_a_gap(payload: bytes) -> None:
    cleared: list[Endpoint] = []
    endpoint = Endpoint(EndpointConfig(url="http://10.0.0.1:80", engine="vllm"))
    subscriber = KvEventSubscriber(endpoint, cleared.append)
    empty = msgspec.msgpack.encode([0.0, []])
    for number, data in enumerate((empty, payload, empty)):
        subscriber.apply([b"", number.to_bytes(8, "big"), data])
    assert cleared == [endpoint]
    subscriber.apply([b"topic", b"short", empty])
    subscriber.apply([b"alone"])
    assert cleared == [endpoint]


@pytest.mark.parametrize(
    "event",
    [7, [], [7], {}, {"type": "Other"}, {"type": "BlockStored", "block_hashes": 5}, ["BlockStored"], ["New", 1]],
)
def test_events_nobody_knows_are_passed_over(event: object) -> None:
    blocks = CachedBlocks()
    assert not blocks.apply(0, msgspec.msgpack.encode([0.0, [event]]))
    assert len(blocks) == 0


async def test_capacity_is_the_size_at_an_eviction(publisher: Publisher) -> None:
    async with publisher:
        blocks = CachedBlocks()
        blocks.apply(5, publisher.batch(publisher.stored(*range(10))))
        assert blocks.tokens == 0, "perhaps more fits"
        blocks.apply(6, publisher.batch(publisher.removed(0), publisher.stored(10)))
        assert (len(blocks), blocks.tokens) == (10, 160)
        assert blocks.apply(8, publisher.batch(publisher.stored(11))), "one batch is lost"
        assert (len(blocks), blocks.tokens) == (1, 160)
        assert not blocks.apply(9, publisher.batch(publisher.removed(11)))
        assert blocks.tokens == 160
        assert blocks.apply(0, publisher.batch()), "another life"
        assert (len(blocks), blocks.tokens) == (0, 0)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
async def test_events_over_zeromq(publisher: Publisher, engine: str) -> None:
    chain = list(range(50))
    async with publisher, MockEngine("p") as mock:
        mock.pages["/v1/models"] = models("m")
        config = {"url": mock.url, "name": "p", "engine": engine, "kv_events": publisher.address}
        endpoints = (msgspec.convert(config, EndpointConfig),)
        async with serving(endpoints=endpoints, wait=False) as router:
            index = router.router.prefixes
            endpoint = router.router.endpoints.all[0]

            def guessed_blocks() -> int:
                return index.match(chain, [endpoint])[0]

            await publisher.subscribed()
            await publisher.publish(publisher.stored(*range(80)))
            await publisher.publish(publisher.removed(1), publisher.stored(200))
            await eventually(lambda: endpoint.report.cache_tokens == 80 * 16)
            index.sent(chain, endpoint, 0).first_byte()
            assert 0 < len(index) <= 80 * 16 * 4 // 256, "no more is guessed than fits"
            await publisher.publish(publisher.cleared())
            await eventually(lambda: guessed_blocks() == 0)
            index.sent(chain[:10], endpoint, 0).first_byte()
            assert guessed_blocks() == 10
            next(publisher.numbers)  # one gets lost
            await publisher.publish(publisher.stored(3))
            await eventually(lambda: guessed_blocks() == 0)
            assert (await router.chat()).status_code == 200


async def test_an_invalid_address_is_logged_and_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with MockEngine("p") as mock:
        config = EndpointConfig(url=mock.url, name="p", engine="vllm", kv_events="nonsense")
        async with serving(endpoints=(config,), wait=False) as router:
            await eventually(lambda: "kv_events of endpoint p: nonsense" in caplog.text)
            assert (await router.chat()).status_code == 200
