"""Headers and limits: what the router lets through, adds, drops and refuses."""

import asyncio
import contextlib
import json
import re
from pathlib import Path

import msgspec
import pytest
from router_support.engine import MockEngine
from router_support.serving import eventually, question, raw_post, serving

from blade_protocol import environment
from blade_protocol import headers as names
from blade_protocol.routing import EndpointConfig, ModelConfig, RouterConfig


async def test_clients_cannot_set_router_headers() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        response = await router.chat(
            headers={"X-Blade-Internal-Token": "guess", "x-blade-anything": "1", "authorization": "Bearer k"}
        )
    received = engine.received[0]
    ours = [header for header in received.headers if header[0].startswith("x-blade-")]
    assert ours == [(names.COMMENTS, "0")], "the router's own"
    assert received.header("authorization") == ["Bearer k"]
    assert "x-blade-secret" not in response.headers, "nor do an engine's internal headers reach clients"


async def test_hop_by_hop_headers_stop_here() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        await router.chat(
            headers={
                "connection": "keep-alive, x-mine",
                "x-mine": "1",
                "te": "trailers",
                "keep-alive": "timeout=9",
                "proxy-authorization": "secret",
                "upgrade": "h2c",
                "x-other": "kept",
            }
        )
    received = engine.received[0]
    for name in ("connection", "x-mine", "te", "keep-alive", "proxy-authorization", "upgrade", "transfer-encoding"):
        assert received.header(name) == [], name
    assert received.header("x-other") == ["kept"]
    assert received.header("host") == [engine.url.removeprefix("http://")]
    assert len(received.header("content-length")) == 1


async def test_request_id_is_kept_or_made() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        kept = await router.chat(headers={names.REQUEST_ID: "mine-7"})
        made = [await router.chat(), await router.chat()]
    assert kept.headers[names.REQUEST_ID] == "mine-7"
    assert engine.received[0].header(names.REQUEST_ID) == ["mine-7"]
    ids = [response.headers[names.REQUEST_ID] for response in made]
    assert ids == [request.header(names.REQUEST_ID)[0] for request in engine.received[1:]]
    assert len(set(ids)) == 2


async def test_response_headers_name_endpoint_and_reason() -> None:
    async with MockEngine("good") as good, MockEngine("bad", mode="reset") as bad:
        async with serving(good, bad, policy="round-robin", debug_routes=True) as router:
            responses = [await router.chat() for _ in range(2)]
    reasons = {response.headers[names.ROUTE_REASON] for response in responses}
    assert {response.headers[names.ENDPOINT] for response in responses} == {"good"}
    assert reasons == {"round-robin", "round-robin retry=reset"}


async def test_clients_are_told_the_policy_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text("letmein\n")
    monkeypatch.setenv(environment.INTERNAL_TOKEN_FILE, str(token))
    log = tmp_path / "access.log"
    async with MockEngine("a") as engine:
        nameless = EndpointConfig(url=engine.url)
        async with serving(endpoints=(nameless,), wait=False, access_log=str(log)) as router:
            await eventually(lambda: router.router.endpoints.usable_count() == 1)
            given = ("", "wrong", "letmein")
            answers = [await router.chat(headers={names.INTERNAL_TOKEN: each} if each else {}) for each in given]
        sent = [each.header(names.INTERNAL_TOKEN) for each in engine.received if each.method == "POST"]
        assert sent == [["letmein"]] * 3, "the router's own, whatever the client sent"
    for answer in answers[:2]:
        assert answer.headers[names.ROUTE_REASON] == "auto"
        assert re.fullmatch(r"engine-[0-9a-f]{8}", answer.headers[names.ENDPOINT])
    assert answers[2].headers[names.ROUTE_REASON].startswith("auto prefix=0/0 in_flight=0 ms=")
    assert answers[2].headers[names.ENDPOINT] == engine.url
    for line in map(json.loads, log.read_text().splitlines()):
        assert (line["endpoint"], line["reason"][:11]) == (engine.url, "auto prefix"), "the log has it all"


async def test_body_over_the_limit_is_413() -> None:
    async with MockEngine("a") as engine, serving(engine, max_body_bytes=1000) as router:
        response = await router.client.post("/v1/chat/completions", json=question() | {"pad": "x" * 1000})
        assert response.status_code == 413
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert "1000 bytes" in response.json()["error"]["message"]
        assert engine.received == []
        assert (await router.chat()).status_code == 200


async def test_body_of_unknown_length_over_the_limit_is_413() -> None:
    async def pieces():  # type: ignore[no-untyped-def]
        for _ in range(20):
            yield b"x" * 100

    async with MockEngine("a") as engine, serving(engine, max_body_bytes=1000) as router:
        response = await router.client.post("/v1/completions", content=pieces())
        assert response.status_code == 413
        assert engine.received == []


async def test_twenty_megabytes_are_413_by_default() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        response = await router.client.post(
            "/v1/completions", content=b'"' + b"x" * 20_000_000 + b'"', headers={"content-type": "application/json"}
        )
        assert response.status_code == 413
        assert (await router.chat()).status_code == 200


@pytest.mark.parametrize("body", [b"", b"{", b'{"model": }', b"model=a", b'{"a": 1} {"b": 2}'])
async def test_malformed_json_is_400(body: bytes) -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        response = await router.client.post(
            "/v1/chat/completions", content=body, headers={"content-type": "application/json; charset=utf-8"}
        )
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert "not valid JSON" in response.json()["error"]["message"]
        assert engine.received == []


@pytest.mark.parametrize("body", [b'{"model": 5, "stream": {}}', b"[1]", b'"text"', b'{"stream": "true"}'])
async def test_json_the_router_cannot_judge_goes_to_the_engine(body: bytes) -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        await router.client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        assert [request.body for request in engine.received] == [body]


CHAT = b'{"model": "m", "prompt": "hi"}'


@pytest.mark.parametrize(
    ("content_type", "body", "status", "code"),
    [
        (b"text/plain", b"hi", 415, "unsupported_media_type"),
        (b"application/xml", b"<x/>", 415, "unsupported_media_type"),
        (b"multipart/form-data; boundary=x", b"--x\r\n\r\n{}\r\n--x--", 415, "unsupported_media_type"),
        (b"application/jsonx", b"\xff\xfe{\x00}\x00", 415, "unsupported_media_type"),
        (b"application/x+json", b'{"model": ', 400, "invalid_json"),
        (b"application/json; charset=utf-16", CHAT.decode().encode("utf-16"), 400, "invalid_json"),
        (b"application/json", CHAT.decode().encode("utf-16-le"), 400, "invalid_json"),
        (b"application/x+json", CHAT.decode().encode("utf-16-be"), 400, "invalid_json"),
        (b"application/json", CHAT.decode().encode("utf-32"), 400, "invalid_json"),
        (b"application/json", b"\xef\xbb\xbf" + CHAT, 400, "invalid_json"),
        (b"", CHAT.decode().encode("utf-16"), 400, "invalid_json"),
        (b"", b"", 400, "invalid_json"),
    ],
)
async def test_a_body_that_is_not_read_is_not_forwarded(
    content_type: bytes, body: bytes, status: int, code: str
) -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        headers = {b"content-type": content_type} if content_type else {}
        response = await router.client.post("/v1/completions", content=body, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert engine.received == []


@pytest.mark.parametrize(
    "content_type", [b"", b"application/x+json", b"text/plain", b"application/json; charset=utf-8"]
)
async def test_json_is_read_whatever_it_is_called(content_type: bytes, tmp_path: Path) -> None:
    config = tmp_path / "router.json"
    config.write_bytes(msgspec.json.encode(RouterConfig(models=(ModelConfig(name="m", max_tokens=5),))))
    async with MockEngine("a") as engine, serving(engine, config=config) as router:
        headers = {b"content-type": content_type} if content_type else {}
        body = b'{"model": "m", "prompt": "hi", "max_tokens": 50}'
        response = await router.client.post("/v1/completions", content=body, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "max_tokens_exceeded")
        assert engine.received == []


async def test_unknown_method_and_path_are_openai_shaped() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        put = await router.client.put("/v1/completions", json={})
        elsewhere = await router.client.get("/nowhere")
    assert (put.status_code, put.json()["error"]["code"]) == (405, "method_not_allowed")
    assert (elsewhere.status_code, elsewhere.json()["error"]["code"]) == (404, "not_found")


async def test_requests_on_one_connection_follow_each_other() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        reader, writer = await raw_post(router.port, question())
        await reader.readuntil(b"from a")
        await reader.readuntil(b"}}")
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: r\r\n\r\n")
        assert b'"id": "a"' in await reader.readuntil(b"}]}")
        writer.close()


@pytest.mark.parametrize("end", [b"", b"\r\ncontent-length: 2\r\n\r\n{}"])
async def test_a_head_without_end_is_refused_before_it_fills_the_memory(end: bytes) -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-a: ")
        writer.write(b"a" * 4_000_000 + end)
        with contextlib.suppress(ConnectionError):
            assert (await reader.readline()).split()[1] == b"400"
        writer.close()
        assert engine.received == []
        body = b"{}" + b" " * 1_000_000  # a body is another thing, and so is the next request on the connection
        async with asyncio.timeout(10):
            for _ in range(2):
                assert (await router.client.post("/v1/completions", content=body)).status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 2\r\ncontent-length: 9\r\n",
        b"content-length: 2\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
        b"content-length : 2\r\n",
        b"x-a: b\rcontent-length: 2\r\n",
    ],
)
async def test_a_request_that_can_be_read_in_two_ways_is_read_in_none(head: bytes) -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n2\r\n{}\r\n0\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()
        assert engine.received == []


async def test_an_endpoint_whose_name_can_be_no_host_is_only_down() -> None:
    async with serving(wait=False, endpoints=(EndpointConfig(url="http://a..b:80", name="odd"),)) as router:
        response = await router.client.get("/v1/models")
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engines_unavailable")
        await eventually(lambda: router.router.endpoints.all[0].health.up is False)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":1,',
        b'{"model":1,"x":tru}',
        b'{"model":1,"user":"\\udc00x"}',
        b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
    ids=["cut off", "no word", "a lone surrogate", "deep"],
)
async def test_json_that_is_none_is_the_clients_fault(body: bytes) -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        headers = {"content-type": "application/json"}
        response = await router.client.post("/v1/chat/completions", content=body, headers=headers)
        assert response.status_code in (200, 400)  # what the engine takes for JSON it may judge by itself
        assert await router.metric('blade_router_requests_total{code="500"}') == 0
        assert await router.metric('blade_router_requests_total{code="499"}') == 0
        assert (await router.chat()).status_code == 200
