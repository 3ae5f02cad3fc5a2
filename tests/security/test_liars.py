"""An engine may send anything: it costs its own client one clean error at most, and nobody else anything."""

import json

import pytest
from router_support.bad_engine import EVENTS, HEAD, Script, plays, routed
from router_support.engine import MockEngine
from router_support.raw import connected, get, post
from security.liars import BROKEN_STREAMS, INVALID, LOST, LYING_HEADERS, REDIRECTS, WHOLE_RESPONSES

ADDRESS = "http://10.0.0.1:8000/v1/chat/completions"


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("name", [*INVALID, *LOST])
async def test_an_invalid_response_is_retried_elsewhere(name: str, stream: bool) -> None:
    async with MockEngine("good") as good, routed((INVALID | LOST)[name], good) as (router, bad):
        while not bad.requests:
            response = await router.chat(stream=stream)
            assert (response.status_code, response.headers["x-blade-endpoint"]) == (200, "good")
            assert response.content.endswith(b"data: [DONE]\n\n") if stream else response.json()["object"]
        # requested once, and what the router let come in is bounded (sockets' buffers are counted too)
        assert bad.sent < 8 << 20


@pytest.mark.parametrize("name", INVALID)
async def test_without_another_engine_it_is_a_clean_error(name: str) -> None:
    async with routed(INVALID[name]) as (router, _):
        response = await router.chat()
        assert response.status_code == 503
        error = response.json()["error"]
        assert error["code"] == "engines_unavailable"
        assert "protocol" in error["message"]


@pytest.mark.parametrize("name", LOST)
async def test_an_engine_that_is_lost_twice_with_a_request_gets_it_no_more(name: str) -> None:
    async with routed(LOST[name]) as (router, bad):
        response = await router.chat()
        assert (response.status_code, response.json()["error"]["code"]) == (502, "engine_lost")
        assert bad.requests == 2
        again = await router.chat()
        assert (again.status_code, again.json()["error"]["code"]) == (503, "quarantined")
        assert bad.requests == 2


@pytest.mark.parametrize("name", WHOLE_RESPONSES)
async def test_unusual_responses_arrive_whole(name: str) -> None:
    script, status, body = WHOLE_RESPONSES[name]
    async with routed(script) as (router, bad):
        for _ in range(2):  # whatever came after the first is not taken for the second
            response = await router.chat()
            assert (response.status_code, response.content) == (status, body)
            assert not {"x-sum", "x-a", "upgrade", "x-blade-a"} & response.headers.keys()
        assert bad.requests == 2


@pytest.mark.parametrize("name", BROKEN_STREAMS)
async def test_a_stream_that_breaks_ends_in_an_error_event(name: str) -> None:
    async with routed(plays(EVENTS, *BROKEN_STREAMS[name])) as (router, _):
        response = await router.chat(stream=True)
    assert response.status_code == 200
    first, last, rest = response.content.split(b"\n\n")
    assert (first, rest) == (b"data: 1", b"")
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "engine_lost"


async def seen_through(script: Script, wanted: bytes = post()) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the response to the second of two requests on a connection, which gets nothing
    else."""
    async with routed(script) as (router, _), connected(router.port) as client:
        client.send(wanted)
        first = await client.response()
        client.send(wanted, get(b"/live"))
        found = await client.response()
        assert (found.status, found.body) == (first.status, first.body)
        assert (await client.response()).body == b'{"status":"ok"}', "nothing lies between the responses"
    return found.status, dict(found.headers), found.body


@pytest.mark.parametrize(
    "framing", [b"content-length: 2\r\n\r\n{}", b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"]
)
@pytest.mark.parametrize("name", LYING_HEADERS)
async def test_headers_stay_in_the_router_that_lead_past_it_or_are_about_its_connection(
    name: str, framing: bytes
) -> None:
    lines, dropped = LYING_HEADERS[name]
    status, headers, body = await seen_through(plays(HEAD + b"x-kept: 1\r\n" + lines + b"\r\n" + framing))
    assert (status, body, headers["x-kept"], headers["x-blade-endpoint"]) == (200, b"{}", "1", "bad")
    assert not dropped & headers.keys()
    assert headers["content-length"] == "2"


@pytest.mark.parametrize("name", REDIRECTS)
async def test_no_redirect_leaves_the_router(name: str) -> None:
    head = b"HTTP/1.1 %b\r\nlocation: %b\r\n" % (REDIRECTS[name], ADDRESS.encode())
    status, headers, body = await seen_through(plays(head + b"content-length: 2\r\n\r\n{}"))
    assert (status, json.loads(body)["error"]["code"]) == (502, "engine_redirected")
    assert "location" not in headers
    assert b"10.0.0.1" not in body


@pytest.mark.parametrize(
    "path", [b"/v1/chat/completions/", b"/v1/chat/completions//?a=b/", b"/v1/chat/completions?a=/"]
)
async def test_a_slash_at_the_end_of_a_path_is_none(path: bytes) -> None:
    async with MockEngine("a") as engine, routed(plays(), engine) as (router, _), connected(router.port) as client:
        client.send(post(path=path) + get(b"/live/") + get(b"/"))
        assert (await client.response()).status == 200
        assert (await client.response()).status == 200
        assert (await client.response()).status == 404
    (received,) = engine.received
    assert received.target == path.decode().replace("completions//", "completions").replace(
        "completions/", "completions"
    )
