"""``/v1/messages`` through the router: its own errors in Anthropic's shape, keys, salts, limits, usage, resumption."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from router_support.engine import MockEngine
from router_support.keys import SECRET, content, key
from router_support.serving import Running, serving
from router_support.streams import Reading, over, replica, whole

from blade_protocol import paths
from blade_protocol.routing import EndpointConfig
from blade_router.resume import EventStream

BODY: dict[str, Any] = {"model": "mock", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
START = b"event: message_start\n" + (
    b'data: {"type":"message_start","message":{"usage":{"input_tokens":7,"cache_read_input_tokens":3}}}\n\n'
)


def keys_file(folder: Path, **fields: Any) -> Path:
    file = folder / "keys.json"
    file.write_text(content(key(**fields)))
    return file


def error(response: httpx.Response, status: int, kind: str, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body: dict[str, Any] = response.json()
    assert body["type"] == "error"
    assert (body["error"]["type"], body["error"]["code"]) == (kind, code)
    if "request-id" in response.headers:
        assert body["request_id"] == response.headers["request-id"]
    return body


async def post(router: Running, path: str = paths.MESSAGES, *, key: str = SECRET, **fields: Any) -> httpx.Response:
    return await router.client.post(path, json=BODY | fields, headers={"x-api-key": key})


async def test_errors_of_the_router_have_their_clients_shape(tmp_path: Path) -> None:
    async with MockEngine("a") as engine, serving(engine, keys=keys_file(tmp_path, models=["mock"])) as router:
        error(await post(router, key="wrong"), 401, "authentication_error", "invalid_api_key")
        error(await router.client.post(paths.COUNT_TOKENS, json=BODY), 401, "authentication_error", "invalid_api_key")
        found = error(await post(router, model="other"), 404, "not_found_error", "model_not_found")
        assert found["request_id"], "known once the request was read"
        bad = await router.client.post(paths.MESSAGES, content=b"{", headers={"x-api-key": SECRET})
        error(bad, 400, "invalid_request_error", "invalid_json")
        error(await router.client.get(paths.MESSAGES), 405, "invalid_request_error", "method_not_allowed")
        error(await post(router, "/v1/messages/batches"), 404, "not_found_error", "not_found")
        elsewhere = await router.client.post(paths.CHAT_COMPLETIONS, json=BODY)
        assert "type" not in elsewhere.json(), "other paths have OpenAI's shape"


async def test_a_body_that_is_too_large(tmp_path: Path) -> None:
    async with MockEngine("a") as engine, serving(engine, max_body_bytes=1000) as router:
        for path in (paths.MESSAGES, f"{str(router.client.base_url).rstrip('/')}/{paths.MESSAGES}/"):
            error(await post(router, path, x="x" * 2000), 413, "request_too_large", "request_too_large")


async def test_a_redirect_is_refused_with_one_id() -> None:
    async with MockEngine("a", mode="status", status=307) as engine, serving(engine) as router:
        response = await post(router)
        error(response, 502, "api_error", "engine_redirected")
        assert len(response.headers.get_list("request-id")) == 1


async def test_limits_and_overload(tmp_path: Path) -> None:
    async with MockEngine("a") as engine, serving(engine, keys=keys_file(tmp_path, requests_per_minute=1)) as router:
        assert (await post(router)).status_code == 200
        refused = await post(router)
        error(refused, 429, "rate_limit_error", "rate_limit_exceeded")
        assert int(refused.headers["retry-after"]) > 0
    async with serving(wait=False, endpoints=(EndpointConfig(url="http://127.0.0.1:9", name="a"),)) as router:
        refused = await post(router)
        error(refused, 503, "overloaded_error", refused.json()["error"]["code"])
        assert int(refused.headers["retry-after"]) > 0, "clients wait and try again, as after Anthropic's 529"


async def test_a_held_stream_ends_in_an_error_event(tmp_path: Path) -> None:
    config = tmp_path / "router.json"
    config.write_text(json.dumps({"hold": {"max_requests": 8, "max_age": 0.3, "heartbeat": 0.05}}))
    endpoint = EndpointConfig(url="http://127.0.0.1:9", name="a")
    async with serving(wait=False, endpoints=(endpoint,), config=config) as router:
        response = await post(router, stream=True)
    assert response.status_code == 200
    assert response.headers["request-id"] == response.headers["x-request-id"], "the head went out with a comment"
    *comments, last, end = response.text.split("\n\n")
    assert comments, "it was held for a while"
    assert all(comment.startswith(":") for comment in comments)
    name, data = last.split("\n")
    assert (name, end) == ("event: error", "")
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "overloaded_error"


async def test_requests_and_responses_carry_one_id(tmp_path: Path) -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        response = await router.client.post(
            f"{paths.MESSAGES}?beta=true",
            json=BODY,
            headers={"x-request-id": "r-1", "anthropic-version": "2023-06-01", "anthropic-beta": "x"},
        )
        (received,) = [each for each in engine.received if each.method == "POST"]
    assert received.target == "/v1/messages?beta=true"
    assert received.header("anthropic-version") == ["2023-06-01"]
    assert received.header("x-request-id") == ["r-1"]
    assert response.headers["request-id"] == "r-1"


async def test_the_prompts_of_a_key_are_kept_apart(tmp_path: Path) -> None:
    async with MockEngine("a") as engine, serving(engine, keys=keys_file(tmp_path)) as router:
        assert (await post(router)).status_code == 200
        assert (await post(router, paths.COUNT_TOKENS)).status_code == 200
        message, count = (json.loads(each.body) for each in engine.received if each.method == "POST")
        assert [each.header("x-api-key") for each in engine.received if each.method == "POST"] == [[], []]
    assert len(message["cache_salt"]) == 32
    assert "cache_salt" not in count


async def test_the_models_bound_holds(tmp_path: Path) -> None:
    config = tmp_path / "router.json"
    model = {"name": "mock", "max_tokens": 4, "defaults": {"temperature": 0.5}}
    async with MockEngine("a") as engine:
        endpoints = [{"url": engine.url, "name": "a"}]
        config.write_text(json.dumps({"models": [model], "endpoints": endpoints}))
        async with serving(wait=False, endpoints=(), config=config) as router:
            error(await post(router), 400, "invalid_request_error", "max_tokens_exceeded")
            assert (await post(router, max_tokens=3)).status_code == 200
        (received,) = [each for each in engine.received if each.method == "POST"]
    assert json.loads(received.body) == BODY | {"max_tokens": 3, "temperature": 0.5}


async def test_a_stream_that_breaks_is_resumed() -> None:
    async with replica("a") as a, replica("b") as b, over(a, b) as router:
        async with Reading.of(router, a, b, path=paths.MESSAGES, max_tokens=9) as stream:
            await stream.more(stream.engine, 2)
            await stream.engine.kill()
            assert await stream.rest(stream.other()) == whole(a)
        (resumed,) = stream.other().resumed
    assert (resumed["path"], resumed["token_ids"]) == (paths.MESSAGES, [[0], [1], [2]])


def test_a_stream_that_cannot_be_resumed_ends_in_an_error_event() -> None:
    events = EventStream()
    events.feed(START)
    assert not events.over
    name, data, *end = events.broken("it was reset").decode().split("\n")
    assert (name, end) == ("event: error", ["", ""])
    found = json.loads(data.removeprefix("data: "))
    assert (found["type"], found["error"]["type"], found["error"]["code"]) == ("error", "api_error", "engine_lost")
    events.feed(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    assert events.over
    assert events.broken("it was reset") == b""


@pytest.mark.parametrize("gap", [False, True], ids=["whole", "in-pieces"])
async def test_the_usage_of_a_stream_is_that_of_its_first_and_last_events(gap: bool) -> None:
    end = b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":4}}\n\n'
    end += b'event: message_stop\ndata: {"type":"message_stop"}\n\n'

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"POST"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        else:
            size = len(START) + len(end)
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (size, START)
            )
            if gap:
                await writer.drain()
                await asyncio.sleep(0.1)
            writer.write(end)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    endpoint = EndpointConfig(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", name="other", engine="vllm")
    async with server, serving(wait=False, endpoints=(endpoint,)) as router:
        seen: list[Any] = []
        router.router.proxy.observers = [lambda outcome: seen.append(outcome.request.usage)]
        response = await post(router, stream=True)
        assert response.content == START + end
    (usage,) = seen
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (10, 4, 3)
