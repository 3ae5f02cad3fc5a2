"""Responses reach the client as the engine gave them, requests reach the engine as the client sent them."""

import asyncio
import json

import httpx
import openai
import pytest
from router_support.engine import MockEngine
from router_support.serving import eventually, question, raw_post, serving

from blade_router.proxy.response_headers import forwardable


async def test_unary_response_is_relayed_unchanged() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        response = await router.chat()
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"] == "from a"
    assert response.headers["x-engine"] == "kept"
    assert int(response.headers["content-length"]) == len(response.content)


def test_of_our_own_headers_only_the_fields_left_out_pass() -> None:
    passed = [(b"x-blade-ignored", b"num_ctx"), (b"x-blade-unheld", b"#/a"), (b"x-other", b"y")]
    assert forwardable([*passed, (b"x-blade-seed", b"5")], None) == passed


async def test_stream_is_relayed_byte_for_byte() -> None:
    async with MockEngine("a", tokens=5) as engine, serving(engine) as router:
        async with httpx.AsyncClient(base_url=engine.url, trust_env=False) as client:
            direct = await client.post("/v1/chat/completions", json=question(stream=True))
        response = await router.chat(stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.content == direct.content
    assert response.content.endswith(b"data: [DONE]\n\n")


async def test_request_body_is_forwarded_untouched() -> None:
    body = b'{ "model" :"m",  "messages":[],"unknown_field": 1e400, "text": "\\u00e9\xc3\xa9" }\n'
    async with MockEngine("a") as engine, serving(engine) as router:
        await router.client.post(
            "/v1/completions?trace=1&x=%20", content=body, headers={"content-type": "application/json"}
        )
    assert engine.received[0].body == body
    assert engine.received[0].method == "POST"
    assert engine.received[0].target == "/v1/completions?trace=1&x=%20"


async def test_chunked_request_body_is_forwarded() -> None:
    async def pieces():  # type: ignore[no-untyped-def]
        data = json.dumps(question()).encode()
        for start in range(0, len(data), 7):
            yield data[start : start + 7]

    async with MockEngine("a") as engine, serving(engine) as router:
        response = await router.client.post(
            "/v1/chat/completions", content=pieces(), headers={"content-type": "application/json"}
        )
    assert response.status_code == 200
    assert json.loads(engine.received[0].body) == question()


async def test_large_bodies_pass_both_ways() -> None:
    async with MockEngine("a", padding="y" * 3_000_000) as engine, serving(engine) as router:
        body = question() | {"padding": "x" * 5_000_000}
        response = await router.client.post("/v1/chat/completions", json=body)
    assert json.loads(engine.received[0].body) == body
    assert len(response.json()["choices"][0]["message"]["content"]) == 3_000_006


async def test_response_too_long_to_buffer_is_streamed() -> None:
    async with MockEngine("a", padding="y" * 20_000_000) as engine, serving(engine) as router:
        response = await router.chat()
    assert len(response.json()["choices"][0]["message"]["content"]) == 20_000_006


async def test_each_event_arrives_before_the_next_is_made() -> None:
    gate = asyncio.Semaphore(1)
    async with MockEngine("a", tokens=4, gate=gate) as engine, serving(engine) as router:
        async with router.client.stream("POST", "/v1/chat/completions", json=question(stream=True)) as response:
            chunks = response.aiter_raw()
            for index in range(3):
                assert await anext(chunks) == engine.event(index)
                gate.release()  # only now may the engine make the next one
            assert b"".join([chunk async for chunk in chunks]) == engine.event(3) + b"data: [DONE]\n\n"


async def test_models_come_from_an_engine() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        response = await router.client.get("/v1/models")
    assert response.json()["data"] == [{"id": "a"}]
    assert engine.received[0].method == "GET"


async def test_client_errors_pass_through_once() -> None:
    async with MockEngine("a", mode="status", status=422) as a, MockEngine("b", mode="status", status=422) as b:
        async with serving(a, b) as router:
            for _ in range(8):
                response = await router.chat()
                assert response.status_code == 422
                assert "says 422" in response.json()["error"]["message"]
            assert len(a.received) + len(b.received) == 8
            assert router.router.endpoints.usable_count() == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_official_client_works(stream: bool) -> None:
    async with MockEngine("a", tokens=3) as engine, serving(engine) as router:
        async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none") as client:
            if stream:
                parts = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "hi"}], stream=True
                )
                assert [part.choices[0].delta.content async for part in parts] == ["a-0", "a-1", "a-2"]
            else:
                response = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
                assert response.choices[0].message.content == "from a"


async def test_slow_client_slows_the_engine() -> None:
    """Back-pressure: a stream nobody reads does not pile up in the router."""
    async with MockEngine("a", tokens=4000, padding="z" * 16_000) as engine, serving(engine) as router:
        _, writer = await raw_post(router.port, question(stream=True))
        await eventually(lambda: engine.open and any(not protocol.writable.is_set() for protocol in engine.open))
        assert engine.active == 1  # 64 MB were requested; the engine waits with most of them
        writer.transport.abort()
        await eventually(lambda: engine.active == 0)
