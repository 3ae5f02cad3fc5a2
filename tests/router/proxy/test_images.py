"""Requests with pictures through a router: where they go, what is refused and resumed, and what nobody writes down."""

import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from router_support.engine import MockEngine
from router_support.serving import Running, eventually, serving
from router_support.streams import Reading, over, replica, whole
from telemetry_support.collector import Collector, collecting

from blade_protocol.routing import PolicyName
from blade_router.http.upstream.connection import COPY_LIMIT
from blade_router.request.fields import NOTHING
from blade_router.request.prompt_text import IMAGE_BLOCKS
from blade_router.request.request import ClientRequest
from blade_router.resume.resume_state import ResumeState
from blade_router.ui.request_rows import ended_rows, in_flight_rows
from blade_telemetry import export

MIB = 1 << 20
MARKER = "c2VjcmV0cGljdHVyZQ"
"""Part of the content of a picture."""
CLIENTS = ("httpx", "httpcore", "urllib3")
"""Whose logs are the test's own."""
SIGNATURE = "sig=0123456789secret"
"""Part of the query of a picture's URL."""


def chat(*parts: Any, text: str = "What is this?", **fields: Any) -> dict[str, Any]:
    content = [*parts, {"type": "text", "text": text}]
    return {"model": "mock", "messages": [{"role": "user", "content": content}], **fields}


def picture(number: int, size: int = 2000) -> dict[str, Any]:
    """A picture of its own."""
    data = MARKER + random.Random(number).randbytes(size // 2).hex()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def linked(number: int) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"https://bucket.example.com/{number}.png?{SIGNATURE}"}}


def block(number: int) -> dict[str, Any]:
    """The same as a block of ``/v1/messages``."""
    data = MARKER + random.Random(number).randbytes(1000).hex()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


async def post(router: Running, body: Any, path: str = "/v1/chat/completions") -> httpx.Response:
    return await router.client.post(path, json=body)


# where they go


@pytest.mark.parametrize("policy", ["prefix", "auto", "kv-aware"])
@pytest.mark.parametrize(
    ("form", "path"), [(picture, "/v1/chat/completions"), (linked, "/v1/chat/completions"), (block, "/v1/messages")]
)
async def test_a_second_question_goes_where_the_picture_is_cached(policy: PolicyName, form: Any, path: str) -> None:
    async with MockEngine("a") as a, MockEngine("b") as b, MockEngine("c") as c:
        async with serving(a, b, c, policy=policy, debug_routes=True) as router:
            went = []
            for number in range(9):
                first = await post(router, chat(form(number)), path)
                assert f"prefix=0/{IMAGE_BLOCKS}" in first.headers["x-blade-route-reason"], "none was seen before"
                went.append(first.headers["x-blade-endpoint"])
            assert len(set(went)) > 1
            for number, endpoint in enumerate(went):
                second = await post(router, chat(form(number), text="And who made it?"), path)
                assert second.headers["x-blade-endpoint"] == endpoint
                assert f"prefix={IMAGE_BLOCKS}/{IMAGE_BLOCKS}" in second.headers["x-blade-route-reason"]


async def test_a_picture_has_a_home_by_consistent_hash() -> None:
    async with MockEngine("a") as a, MockEngine("b") as b, MockEngine("c") as c:
        async with serving(a, b, c, policy="consistent-hash") as router:
            homes: list[str] = []
            for number in range(12):
                questions = ("What is this?", "And who made it?", "Why?")
                went = {
                    (await post(router, chat(picture(number), text=text))).headers["x-blade-endpoint"]
                    for text in questions
                }
                assert len(went) == 1
                homes += went
            assert set(homes) == {"a", "b", "c"}


# what is refused


async def test_what_is_refused_is_refused_alone() -> None:
    async with MockEngine("a") as engine, serving(engine, max_images=4, max_part_bytes=2 * MIB) as router:
        for body, path, status, code in (
            (chat(*map(linked, range(1000))), "/v1/chat/completions", 400, "too_many_images"),
            (chat(*map(picture, range(100, 105))), "/v1/chat/completions", 400, "too_many_images"),
            (chat(picture(1, 3 * MIB), stream=True), "/v1/chat/completions", 413, "part_too_large"),
        ):
            refused = await post(router, body, path)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (status, code)
            assert "limit" in error["message"]
            assert (await post(router, chat(*map(linked, range(4))))).status_code == 200, "on the same connection"
        refused = await post(router, chat(*map(block, range(100, 105))), "/v1/messages")
        assert (refused.status_code, refused.json()["type"]) == (400, "error"), "in the API's own form"
        assert "5 images" in refused.json()["error"]["message"]
        assert len(engine.received) == 3
        assert await router.metric('blade_router_refused_requests_total{reason="too_many_images"}') == 3
        assert await router.metric('blade_router_refused_requests_total{reason="part_too_large"}') == 1
        await eventually(lambda: not router.server.limits.budget.used)


async def test_64_pictures_are_served_by_default_and_forwarded_as_they_came() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        body = chat(*(picture(number, 60_000) for number in range(64)))
        assert (await post(router, body)).status_code == 200
        assert json.loads(engine.received[-1].body) == body
        assert (await post(router, chat(*map(linked, range(65))))).status_code == 400


async def test_a_limit_of_tokens_counts_pictures_and_not_their_letters(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"limits": {"tokens_per_minute": 5000}}))
    async with MockEngine("a") as engine, serving(engine, config=config) as router:
        large = await post(router, chat(picture(1, 5 * MIB), max_tokens=1))
        assert large.status_code == 200, "5 MB are no 1.7 million tokens"
        many = await post(router, chat(*map(linked, range(5)), max_tokens=1))
        assert (many.status_code, many.json()["error"]["code"]) == (429, "rate_limit_exceeded")


# what is resumed


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("size", [2000, COPY_LIMIT, 5 * MIB])
async def test_a_stream_about_a_picture_is_resumed(path: str, size: int) -> None:
    parts = chat(picture(1, size), picture(2))
    body = {**parts, "stream": True, "input": parts["messages"]}
    async with replica("a") as a, replica("b") as b, over(a, b) as router:
        async with Reading.of(router, a, b, path=path, **body) as stream:
            await stream.more(stream.engine, 2)
            budget = router.server.limits.budget
            held = budget.used
            assert held >= 2 * size * (size > 1000)
            await stream.engine.kill()
            other = stream.other()
            await eventually(lambda: other.resumed)
            assert budget.used <= held, "what is sent again is what is held anyway"
            assert await stream.rest(other) == whole(a, named=path == "/v1/responses")
        (resumed,) = other.resumed
        assert resumed["request"] == body
        assert (resumed["prompt_digest"], resumed["token_ids"]) == ("same", [[0], [1], [2]])
        await eventually(lambda: not budget.used)


@pytest.mark.parametrize("letters", ['"request":0', '\\"request\\":0', MARKER])
def test_the_body_is_no_part_of_what_is_made_to_resume_it(letters: str) -> None:
    body = json.dumps({"model": letters, "messages": [{"role": "user", "content": letters * 1000}]}).encode()
    request = ClientRequest("POST", "/v1/responses", NOTHING, body, b"r", headers=[(b"authorization", b'"request":0')])
    state = ResumeState(request, '"request":0', 5, 6, '"request":0', "s", "r1", "tag")
    before, after = state.body([[1], [2, 3]])
    assert len(before) + len(after) < 400
    found = json.loads(before + body + after)
    assert found == {
        "path": "/v1/responses",
        "request": json.loads(body),
        "request_id": '"request":0',
        "created": 5,
        "seed": 6,
        "prompt_digest": '"request":0',
        "token_ids": [[1], [2, 3]],
        "response_tag": "tag",
        "owner": ["", '"request":0'],
    }
    assert MARKER not in repr(state)


# what nobody writes down


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setattr(export, "FLUSH_SECONDS", 0.02)
    with collecting() as running:
        yield running


def bodies() -> dict[str, bytes]:
    """What could be quoted by whoever complains of it."""
    good = json.dumps(chat(picture(1), linked(2))).encode()
    return {
        "good": good,
        "a stream": json.dumps(chat(picture(1), linked(2), stream=True)).encode(),
        "large": json.dumps(chat(picture(1, 3 * MIB), linked(2))).encode(),
        "broken off": good[:-5],
        "broken off in a picture": good[: good.index(MARKER.encode()) + 30],
        "broken off in a large one": json.dumps(chat(picture(1, 3 * MIB))).encode()[: 2 * MIB],
        "no UTF-8": good.replace(MARKER.encode(), MARKER.encode() + b"\xff"),
        "a wrong type": json.dumps(chat(picture(1), linked(2), max_tokens=[MARKER, SIGNATURE])).encode(),
        "a control character": good.replace(MARKER.encode(), MARKER.encode() + b"\x01"),
        "too many": json.dumps(chat(*map(picture, range(9)), *map(linked, range(9)))).encode(),
        "a large part": json.dumps(chat(picture(1, 9 * MIB), linked(2))).encode(),
    }


@pytest.mark.parametrize("mode", ["ok", "status", "reset", "garbage", "break", "reset-after-head", "busy"])
async def test_pictures_are_in_no_log(
    mode: Any, collector: Collector, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    log = tmp_path / "access.log"
    caplog.set_level(logging.DEBUG)
    written = []
    async with (
        MockEngine("a", mode=mode) as a,
        MockEngine("b") as b,
        serving(
            *(a, b),
            policy="round-robin",
            access_log=str(log),
            otlp_endpoint=collector.url,
            max_images=16,
            max_part_bytes=8 * MIB,
            debug_routes=True,
        ) as router,
    ):
        statuses = set()
        for body in bodies().values():
            for path in ("/v1/chat/completions", "/v1/messages", f"/v1/responses?{SIGNATURE}", "/tokenize"):
                try:
                    response = await router.client.post(path, content=body)
                except httpx.RemoteProtocolError:
                    continue  # it broke off
                statuses.add(response.status_code)
                written += [response.text, *response.headers.values()]
            explained = await router.admin.post("/debug/route", content=body)
            written += [explained.text]
        assert {200, 400, 413} <= statuses
        recent = router.router.proxy.recent
        assert recent is not None
        assert recent.count == 4 * 6, "the others could not be read"
        written += [repr(each) for each in (*ended_rows(recent, 0, 200), *in_flight_rows(recent))]
        written += [(await router.admin.get(page)).text for page in ("/status", "/metrics", "/internal/signals")]
        await eventually(lambda: len(collector.named("POST")) == 4 * len(bodies()))
        written += [repr(span) for span in collector.spans]
        await eventually(lambda: log.exists() and len(log.read_text().splitlines()) == 4 * len(bodies()))
    written.append(log.read_text())
    for record in caplog.records:
        if record.name.partition(".")[0] not in CLIENTS:
            written += [record.getMessage(), repr(record.args), str(record.exc_text or record.exc_info)]
    for text in written:
        assert MARKER not in text
        assert SIGNATURE not in text


@pytest.mark.interpreted
async def test_pictures_are_in_no_traceback(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def failing(endpoints: Any, request: ClientRequest) -> None:
        assert request.media.images == 2
        raise RuntimeError(f"of {request!r} with {request.fields.chat!r} {request.prompt!r} {request.media!r}")

    async with MockEngine("a") as engine, serving(engine) as router:
        monkeypatch.setattr(router.router.proxy.policy, "choose", failing)
        response = await post(router, chat(picture(1), linked(2)))
        assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert "RuntimeError" in caplog.text
    for text in (caplog.text, response.text):
        assert MARKER not in text
        assert SIGNATURE not in text
