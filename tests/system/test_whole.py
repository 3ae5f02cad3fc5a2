"""The must-hold list on real processes: two engine replicas of the demo model behind the router."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from benchmarks.fleet import Fleet, Program, engine, fleet
from engine_support.idle import wait_for_sleep
from openai import AsyncOpenAI, OpenAI

from blade_protocol import headers


@pytest.fixture(scope="module")
def two_replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("fleet"), 2, "--dtype", "float32") as running:
        yield running


def _state(program: Program) -> dict[str, Any]:
    """The engine's state once it no longer changes: engines publish it at most ten times a second."""
    states: list[dict[str, Any]] = []
    while len(states) < 2 or states[-1] != states[-2]:
        states.append(httpx.get(f"{program.internal_url}/internal/state", timeout=5).json())
        time.sleep(0.15)
    return states[-1]


QUESTIONS = ["What does len do?", "What does sorted do?", "What is a list?", "How do I open a file?"]


def _mixed_prompts(count: int) -> list[tuple[str, int]]:
    rng = random.Random(7)
    return [
        (" ".join(rng.choice(QUESTIONS) for _ in range(rng.randint(1, 40))), rng.randint(1, 96)) for _ in range(count)
    ]


def _client(program: Program) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{program.url}/v1", api_key="none", max_retries=0, timeout=120)


async def _stream(client: AsyncOpenAI, prompt: str, max_tokens: int, **extra: Any) -> tuple[str, str | None]:
    text, finish = "", None
    stream = await client.completions.create(
        model="", prompt=prompt, max_tokens=max_tokens, temperature=0, stream=True, extra_body=extra
    )
    async for chunk in stream:
        text += chunk.choices[0].text
        finish = chunk.choices[0].finish_reason or finish
    return text, finish


async def test_64_concurrent_streams_each_equal_to_the_output_alone(two_replicas: Fleet) -> None:
    requests = _mixed_prompts(64)
    async with _client(two_replicas.router) as client:
        together = await asyncio.gather(*(_stream(client, prompt, tokens) for prompt, tokens in requests))
        assert all(finish in ("stop", "length") for _, finish in together)
        alone = [await _stream(client, *request) for request in requests]
    assert together == alone
    assert all(_state(program)["generation_tokens_total"] > 0 for program in two_replicas.engines)


async def test_a_late_request_gets_its_first_token_before_a_long_one_ends(two_replicas: Fleet) -> None:
    order: list[str] = []

    async def run(client: AsyncOpenAI, name: str, tokens: int, started: asyncio.Event, ready: asyncio.Event) -> None:
        await started.wait()
        stream = await client.completions.create(
            model="", prompt=f"{name} " * 30, max_tokens=tokens, stream=True, extra_body={"ignore_eos": True}
        )
        seen = 0
        async for _ in stream:
            seen += 1
            if seen == 5:
                ready.set()
            if seen == 1:
                order.append(f"{name} first")
        order.append(f"{name} end")

    now, long_runs, unused = asyncio.Event(), asyncio.Event(), asyncio.Event()
    now.set()
    async with _client(two_replicas.engines[0]) as client:
        await asyncio.gather(run(client, "long", 600, now, long_runs), run(client, "late", 5, long_runs, unused))
    assert order.index("late first") < order.index("long end")


def test_a_repeated_prefix_of_1000_tokens_is_cached(two_replicas: Fleet) -> None:
    program = two_replicas.engines[0]
    prefix = [random.Random(3).randrange(300, 1000) for _ in range(1000)]
    client = OpenAI(base_url=f"{program.url}/v1", api_key="none")

    def usage_of(suffix: list[int]) -> Any:
        return client.completions.create(model="", prompt=prefix + suffix, max_tokens=1).usage

    usage_of([400, 401])
    before = _state(program)
    usage = usage_of([500, 501, 502])
    after = _state(program)
    assert usage.prompt_tokens == 1003
    assert 1003 - usage.prompt_tokens_details.cached_tokens <= 16 + 3
    assert after["cached_tokens_total"] - before["cached_tokens_total"] == usage.prompt_tokens_details.cached_tokens


async def test_forty_blocks_preempt_and_give_equal_tokens(two_replicas: Fleet, tmp_path: Path) -> None:
    small = engine(tmp_path, "--dtype", "float32", "--max_kv_blocks", "40", "--max_model_len", "256")
    try:
        small.wait_healthy()
        prompts = [f"{question} " * repeats for repeats, question in enumerate(QUESTIONS * 2, start=1)]

        async def outputs(program: Program) -> list[tuple[str, str | None]]:
            async with _client(program) as client:
                return await asyncio.gather(*(_stream(client, prompt, 120, ignore_eos=True) for prompt in prompts))

        assert await outputs(small) == await outputs(two_replicas.engines[0])
        assert _state(small)["preemptions_total"] > 0
    finally:
        small.kill()


def test_an_idle_engine_uses_no_cpu(two_replicas: Fleet) -> None:
    parent = psutil.Process(two_replicas.engines[1].process.pid)
    family = [parent, *parent.children(recursive=True)]
    assert len(family) >= 2
    engine_process = max(family[1:], key=lambda process: process.memory_info().rss)
    wait_for_sleep([engine_process.pid], seconds=2.0, most=0.0)


async def test_killed_engine_under_load_costs_no_client_error_before_the_first_byte(tmp_path: Path) -> None:
    with fleet(tmp_path, 2, "--dtype", "float32") as running:
        client = _client(running.router)
        failures_before_first_byte: list[str] = []
        finished = 0
        stop = asyncio.Event()

        async def user(number: int) -> None:
            nonlocal finished
            while not stop.is_set():
                got_bytes = False
                try:
                    stream = await client.completions.create(
                        model="", prompt=QUESTIONS[number % 4], max_tokens=24, temperature=0, stream=True
                    )
                    async for _ in stream:
                        got_bytes = True
                    finished += 1
                except Exception as error:
                    if not got_bytes:
                        failures_before_first_byte.append(repr(error))

        users = [asyncio.create_task(user(number)) for number in range(12)]
        await asyncio.sleep(1.0)
        running.engines[0].kill()
        at_kill = finished
        await asyncio.sleep(2.0)
        stop.set()
        await asyncio.gather(*users)
        await client.close()
        assert failures_before_first_byte == []
        assert finished > at_kill + 10


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": QUESTIONS[0]}], "max_tokens": 8},
    "/v1/completions": {"prompt": QUESTIONS[0], "max_tokens": 8},
    "/v1/responses": {"input": QUESTIONS[0], "max_output_tokens": 16},
    "/v1/embeddings": {"input": QUESTIONS, "encoding_format": "base64"},
    "/tokenize": {"prompt": QUESTIONS[0]},
    "/detokenize": {"tokens": [300, 301]},
}
_GIVEN_ANEW = ("id", "created", "created_at", "completed_at")


def _lasting(value: Any) -> Any:
    """A response without what differs from one request to the next."""
    if isinstance(value, dict):
        return {name: _lasting(item) for name, item in value.items() if name not in _GIVEN_ANEW}
    return [_lasting(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("path", BODIES)
def test_every_route_responds_the_same_through_the_router(two_replicas: Fleet, path: str) -> None:
    body = BODIES[path] | ({"temperature": 0} if "max_" in str(BODIES[path]) else {})
    programs = (two_replicas.engines[0], two_replicas.router)
    with_more = {**body, "no_such_field": 1}
    responses = [httpx.post(program.url + path, json=with_more, timeout=60) for program in programs]
    assert [response.status_code for response in responses] == [200, 200]
    assert [response.headers[headers.IGNORED] for response in responses] == ["no_such_field"] * 2
    assert _lasting(responses[0].json()) == _lasting(responses[1].json())
    misfit = {**body, next(iter(body)): 5, "stream": True}
    wrong = [httpx.post(program.url + path, json=misfit, timeout=60) for program in programs]
    assert [response.status_code for response in wrong] == [400, 400]
    assert wrong[0].json() == wrong[1].json()


@pytest.mark.parametrize("path", ["/version", "/openapi.json", "/docs", "/v1/models", "/v1/models/model"])
def test_what_describes_the_engine_is_the_engines(two_replicas: Fleet, path: str) -> None:
    direct, routed = (httpx.get(program.url + path) for program in (two_replicas.engines[0], two_replicas.router))
    assert (direct.status_code, routed.status_code) == (200, 200)
    assert direct.headers["content-type"] == routed.headers["content-type"]
    if path.startswith("/v1/"):
        assert [*_lasting(routed.json())] == [*_lasting(direct.json())]
    else:
        assert routed.content == direct.content


def test_a_streamed_response_keeps_its_named_events(two_replicas: Fleet) -> None:
    client = OpenAI(base_url=f"{two_replicas.router.url}/v1", api_key="none")
    events = list(client.responses.create(input=QUESTIONS[0], temperature=0, max_output_tokens=64, stream=True))
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == client.responses.create(input=QUESTIONS[0], temperature=0, max_output_tokens=64).output_text
