"""The client's side of one request: heartbeats while it waits, and responses that keep the 200 they began with."""

import asyncio
import json

import pytest
from router_support.engine import MockEngine
from router_support.raw import BODY, connected, get, post
from router_support.serving import eventually, serving

from blade_protocol.routing import RouterConfig
from blade_router.admission import Admission, AdmissionControl, AdmitAll
from blade_router.http.client import Client
from blade_router.http.errors import Refused
from blade_router.proxy.response_headers import forwardable
from blade_router.request.request import ClientRequest
from blade_router.request.usage import Usage

STREAM = BODY[:-1] + b', "stream": true}'


class Waiting(AdmitAll):
    """Every request waits until the test decides its outcome."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.decided: asyncio.Future[Refused | None] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()

    async def admit(self, request: ClientRequest, client: Client) -> Admission:
        self.client = client
        client.attach(self)
        refusal = await self.decided
        client.detach()
        if refusal is not None:
            raise refusal
        return Admission()

    def abort(self, error: Exception) -> None:
        self.gone.set()


@pytest.mark.interpreted
async def test_a_stream_that_waits_begins_with_comments() -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        gate = Waiting()
        router.router.proxy.admission_control = gate
        client.send(post(STREAM) + get(b"/live"))
        await eventually(lambda: gate.client)
        assert gate.client is not None
        await gate.client.heartbeat(b"waiting", [(b"x-request-id", b"mine")])
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"content-type: text/event-stream\r\n" in head
        assert b"x-request-id: mine\r\n" in head
        comment = b"b\r\n: waiting\n\n\r\n"
        for _ in range(2):
            assert await client.reader.readexactly(len(comment)) == comment
            await gate.client.heartbeat(b"waiting")
        assert await client.reader.readexactly(len(comment)) == comment
        gate.decided.set_result(None)
        body = b""
        while size := int(await client.reader.readline(), 16):
            body += (await client.reader.readexactly(size + 2))[:-2]
        assert body == b"".join(map(engine.event, range(3))) + b"data: [DONE]\n\n"
        await client.reader.readline()
        assert (await client.response()).body == b'{"status":"ok"}', "the connection stays in step"


@pytest.mark.interpreted
async def test_a_refusal_after_comments_is_an_event() -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        gate = Waiting()
        router.router.proxy.admission_control = gate
        client.send(post(STREAM))
        await eventually(lambda: gate.client)
        assert gate.client is not None
        await gate.client.heartbeat(b"waiting")
        gate.decided.set_result(Refused(503, "waited too long", code="queue_timeout", retry_after=1))
        response = await client.response()
        comment, event, rest = response.body.split(b"\n\n")
        assert (response.status, comment, rest) == (200, b": waiting", b"")
        assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "queue_timeout"
        assert router.router.metrics.requests == {503: 1}, "it is counted as what it was"


@pytest.mark.interpreted
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
async def test_an_engines_error_after_comments_is_an_event_too(line_end: bytes) -> None:
    said = line_end.join((b"{", b'"error": {"message": "a says 404"}', b"}"))
    async with MockEngine("a", mode="status", status=404, error_body=said) as engine, serving(engine) as router:
        async with connected(router.port) as client:
            gate = Waiting()
            router.router.proxy.admission_control = gate
            client.send(post(STREAM))
            await eventually(lambda: gate.client)
            assert gate.client is not None
            await gate.client.heartbeat(b"waiting")
            gate.decided.set_result(None)
            event = (await client.response()).body.removeprefix(b": waiting\n\n")
            assert len(event.splitlines()) == 2, "the data is one line, whatever ends a line for readers of events"
            assert "says 404" in json.loads(event.removeprefix(b"data: "))["error"]["message"]


@pytest.mark.interpreted
async def test_a_client_that_leaves_while_it_waits_is_noticed_at_once() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        gate = Waiting()
        router.router.proxy.admission_control = gate
        async with connected(router.port) as client:
            client.send(post())
            await eventually(lambda: gate.client)
        await gate.gone.wait()
        gate.decided.set_result(None)
        await eventually(lambda: router.router.metrics.requests == {499: 1})
        assert engine.received == [], "no engine gets it any more"


@pytest.mark.interpreted
async def test_the_gate_is_what_tickets_are_for() -> None:
    closed: list[Usage | None] = []

    class Counting(Admission):
        def close(self, usage: Usage | None) -> None:
            closed.append(usage)

    class Counter(AdmitAll):
        async def admit(self, request: ClientRequest, client: Client) -> Admission:
            return Counting()

    async with MockEngine("a") as engine, serving(engine) as router:
        gate: AdmissionControl = Counter()
        router.router.proxy.admission_control = gate
        assert (await router.chat()).status_code == 200
        assert closed == [Usage(1, 1)]


def test_cors_is_not_the_engines_decision() -> None:
    headers = [(b"access-control-allow-origin", b"*"), (b"access-control-allow-credentials", b"true"), (b"x-a", b"1")]
    assert forwardable(headers, None) == [(b"x-a", b"1")]


def test_of_our_headers_those_for_clients_pass() -> None:
    unheld = (b"x-blade-unheld", b"#/properties/tags/uniqueItems")
    assert forwardable([unheld, (b"x-blade-endpoint", b"elsewhere")], None) == [unheld]
    assert forwardable([unheld, (b"connection", b"x-blade-unheld")], None) == []


async def test_cors_follows_the_configuration() -> None:
    origin = b"origin: https://chat.example.com"
    preflight = get(b"/v1/chat/completions", origin, b"access-control-request-method: POST", method=b"OPTIONS")
    with_headers = preflight.replace(b"\r\n\r\n", b"\r\naccess-control-request-headers: authorization, x-mine\r\n\r\n")
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        client.send(with_headers + get(b"/v1/models", origin))
        assert (await client.response()).status == 405
        assert (await client.response()).header("access-control-allow-origin") is None

        config = RouterConfig(endpoints=router.router.first.endpoints, cors_origins=("https://chat.example.com",))
        router.router.apply(config)
        client.send(with_headers)
        allowed = await client.response()
        assert (allowed.status, allowed.header("access-control-allow-origin")) == (204, "https://chat.example.com")
        assert allowed.header("access-control-allow-headers") == "authorization, x-mine"
        assert allowed.header("access-control-allow-methods") == "GET, POST, DELETE"
        assert allowed.header("vary") == "origin"
        for request in (post(BODY, origin), get(b"/live", origin), get(b"/nowhere", origin)):
            client.send(request)
            response = await client.response()
            assert response.header("access-control-allow-origin") == "https://chat.example.com"
            assert "x-request-id" in (response.header("access-control-expose-headers") or "")
            assert "x-blade-ignored" in (response.header("access-control-expose-headers") or "")
        client.send(post(BODY, b"origin: https://elsewhere.example.com") + post())
        for _ in range(2):
            response = await client.response()
            assert (response.status, response.header("access-control-allow-origin")) == (200, None)

        router.router.apply(RouterConfig(endpoints=config.endpoints, cors_origins=("*",)))
        client.send(get(b"/v1/models", b"origin: null"))
        assert (await client.response()).header("access-control-allow-origin") == "*"
