"""What /metrics, /status and the event-stream cutter show."""

import asyncio
from itertools import pairwise

import pytest
from prometheus_client.parser import text_string_to_metric_families
from router_support.engine import MockEngine
from router_support.serving import eventually, question, raw_post, serving

from blade_protocol import metrics as names
from blade_router.resume import MAX_BUFFERED, EventStream


async def test_metrics_are_valid_and_complete() -> None:
    async with MockEngine("a") as a, MockEngine("b", mode="reset") as b, serving(a, b) as router:
        for _ in range(4):
            await router.chat()
        await router.client.post("/v1/completions", content=b"{", headers={"content-type": "application/json"})
        text = (await router.admin.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families.values()
        for sample in family.samples
    }
    ours = {name for name in families if not name.startswith("process_")}
    assert ours == {getattr(names, name) for name in dir(names) if name.startswith("ROUTER_")}
    assert samples[("process_resident_memory_bytes",)] > 0
    assert samples[(f"{names.ROUTER_REQUESTS}_total", "200")] == 4
    assert samples[(f"{names.ROUTER_REQUESTS}_total", "400")] == 1
    assert samples[(f"{names.ROUTER_RETRIES}_total", "reset")] == len(b.received) > 0
    assert samples[(f"{names.ROUTER_TTFT}_count",)] == 4
    assert samples[(f"{names.ROUTER_E2E}_count",)] == 5
    assert samples[(names.ROUTER_ENDPOINT_UP, "a")] == 1
    assert samples[(names.ROUTER_IN_FLIGHT,)] == 0


async def test_buckets_fit_the_seconds_of_llms() -> None:
    async with MockEngine("a") as a, serving(a) as router:
        text = (await router.admin.get("/metrics")).text
    bounds = {
        family.name: [float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")]
        for family in text_string_to_metric_families(text)
        if family.type == "histogram"
    }
    for name in (names.ROUTER_TTFT, names.ROUTER_TTFT_STREAM, names.ROUTER_QUEUE_WAIT):
        assert (bounds[name][0], bounds[name][-2]) == (0.001, 120)
    assert (bounds[names.ROUTER_TPOT][0], bounds[names.ROUTER_TPOT][-2]) == (0.001, 5)
    assert bounds[names.ROUTER_E2E][-2] == 900
    for found in bounds.values():
        assert all(1 < above / below <= 3 for below, above in pairwise(found[:-1]))


async def test_requests_in_flight_are_shown() -> None:
    async with MockEngine("a", gate=asyncio.Semaphore(0)) as a, serving(a) as router:
        _, writer = await raw_post(router.port, question())
        await eventually(lambda: a.active == 1)
        assert await router.metric(names.ROUTER_IN_FLIGHT) == 1
        assert await router.metric(f'{names.ROUTER_ENDPOINT_IN_FLIGHT}{{endpoint="a"}}') == 1
        assert (await router.status())["endpoints"]["a"]["in_flight"] == 1
        writer.close()
        await eventually(lambda: a.active == 0)


def test_whole_events_pass_unchanged() -> None:
    stream = EventStream()
    assert stream.feed(b"data: 1\n\ndata: 2\n\n") == b"data: 1\n\ndata: 2\n\n"
    assert stream.feed(b": comment\r\n\r\n") == b": comment\r\n\r\n"
    assert stream.end() == b""


@pytest.mark.parametrize("text", [b"data: 1\n\nid: 2\ndata: two\n\ndata: 3\n\n", b"data: 1\r\n\r\ndata: 2\r\n\r\nda"])
def test_any_cut_gives_the_same_bytes_and_only_whole_events(text: bytes) -> None:
    for first in range(len(text)):
        for second in range(first, len(text)):
            stream = EventStream()
            sent = b""
            for part in (text[:first], text[first:second], text[second:]):
                sent += stream.feed(part)
                assert not sent or sent.endswith((b"\n\n", b"\r\n\r\n"))
            assert sent + stream.end() == text


def test_broken_stream_ends_in_an_error_unless_it_was_done() -> None:
    stream = EventStream()
    stream.feed(b"data: 1\n\ndata: ha")
    assert stream.broken("reset").startswith(b'data: {"error":{')
    stream.feed(b"lf\n\ndata: [DONE]\n\n")
    assert stream.broken("reset") == b""


def test_endless_event_is_not_held_for_ever() -> None:
    stream = EventStream()
    assert stream.feed(b"x" * (MAX_BUFFERED - 1)) == b""
    assert not stream.split
    assert len(stream.feed(b"y")) == MAX_BUFFERED
    assert stream.split
    assert stream.feed(b"z\n\n") == b"z\n\n"
    assert not stream.split


async def test_a_stream_that_breaks_within_a_huge_event_ends_there() -> None:
    """Nothing may follow half an event: the client would take it for its second half."""
    async with (
        MockEngine("a", mode="break", tokens=1, padding="x" * (4 * MAX_BUFFERED)) as engine,
        serving(engine) as router,
    ):
        reader, writer = await raw_post(router.port, question(stream=True))
        received = await reader.read()
        writer.close()
    assert received.count(b"xxxx") > 0
    assert b"engine_lost" not in received
    assert not received.endswith(b"0\r\n\r\n")
