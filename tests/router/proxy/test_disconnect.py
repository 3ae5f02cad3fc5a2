"""A client that leaves stops the engine's work at once, in both modes."""

import asyncio
import time

import pytest
from router_support.engine import MockEngine
from router_support.serving import eventually, question, raw_post, serving

from blade_protocol.routing import EndpointConfig
from blade_router.http.request_reader import Stage
from blade_router.observability.outcome import Outcome
from blade_router.request.usage import Usage
from blade_router.statistics.revisions import Comparison


@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_before_the_first_byte_aborts_upstream(stream: bool) -> None:
    async with MockEngine("a", gate=asyncio.Semaphore(0)) as engine, serving(engine) as router:
        _, writer = await raw_post(router.port, question(stream=stream))
        await eventually(lambda: engine.active == 1)
        writer.close()
        await eventually(lambda: engine.aborted == 1)
        await eventually(lambda: engine.active == 0)
        endpoint = router.router.endpoints.all[0]
        await eventually(lambda: endpoint.in_flight == 0)
        assert endpoint.health.failures == 0, "a client that leaves is no fault of the engine"
        assert await router.metric('blade_router_requests_total{code="499"}') == 1
        assert len(engine.received) == 1, "not tried again"


async def test_disconnect_in_mid_stream_aborts_upstream() -> None:
    gate = asyncio.Semaphore(1)
    async with MockEngine("a", gate=gate) as engine, serving(engine) as router:
        reader, writer = await raw_post(router.port, question(stream=True))
        await reader.readuntil(engine.event(0))
        writer.close()
        await eventually(lambda: engine.aborted == 1)
        await eventually(lambda: router.router.endpoints.all[0].in_flight == 0)


async def test_half_sent_request_reaches_no_engine() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        _, writer = await asyncio.open_connection("127.0.0.1", router.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 100\r\n\r\n{")
        await writer.drain()
        connections = router.server.connections
        await eventually(lambda: any(connection.stage is Stage.BODY for connection in connections))
        writer.close()
        await eventually(lambda: all(connection.stage is Stage.IDLE for connection in connections))
        assert engine.received == []


async def test_connection_is_not_aborted_after_its_response() -> None:
    """The disconnect of one client must not reach the connection's next request."""
    gate = asyncio.Semaphore(1)
    async with MockEngine("a", gate=gate) as engine, serving(engine) as router:
        reader, first = await raw_post(router.port, question())
        await reader.readuntil(b"from a")
        opened = engine.connections - engine.probes
        pending = asyncio.create_task(router.chat())
        await eventually(lambda: engine.active == 1)
        assert engine.connections - engine.probes == opened, "the second request uses the first one's connection"
        first.close()
        await first.wait_closed()
        gate.release()
        assert (await pending).status_code == 200
        assert engine.aborted == 0


@pytest.mark.parametrize("last", [b"data: [DONE]\n\n", b""])
async def test_a_client_that_leaves_with_the_last_event_has_all_of_the_stream(last: bytes) -> None:
    """Many clients close at ``[DONE]``, before the response's own end has come: usage counts, it is no 499, and it
    counts for its revision as any other response."""
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4}}\n\n'
    left = asyncio.Event()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in (b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', usage + last):
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
        await left.wait()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    endpoint = EndpointConfig(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", name="a", engine="vllm")
    async with server, serving(wait=False, endpoints=(endpoint,)) as router:
        outcomes: list[Outcome] = []
        router.router.proxy.observers = [outcomes.append]
        comparison = router.router.metrics.comparison = Comparison({"": 1.0}, time.perf_counter())
        reader, writer = await raw_post(router.port, question(stream=True))
        await reader.readuntil(usage + last)
        writer.close()
        await eventually(lambda: outcomes)
        left.set()
    (outcome,) = outcomes
    assert outcome.request is not None
    if last:
        assert outcome.status == 200
        assert outcome.request.usage == Usage(7, 4)
        assert [(each.requests, each.errors) for each in comparison.signals()] == [(1, 0)]
    else:
        assert (outcome.status, outcome.request.usage) == (499, None)
        assert [each.requests for each in comparison.signals()] == [0]
