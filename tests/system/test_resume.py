"""Engines killed under streams, for real: every client reads what it would have read."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from benchmarks.fleet import Fleet, Program, engine, router

MESSAGES = [{"role": "user", "content": "What does sorted do?"}]
# So long that no stream is over before the second engine is killed, however the machine is loaded.
TOKENS = 2400
LONG = {"max_tokens": TOKENS, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
STREAMS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": MESSAGES, "temperature": 0}),
    ("/v1/chat/completions", {"messages": MESSAGES, "temperature": 1.0, "seed": 7, "stop": ["never to be found"]}),
    ("/v1/completions", {"prompt": "What is a list?", "temperature": 0.8, "seed": 1, "repetition_penalty": 1.2}),
    ("/v1/completions", {"prompt": "def f(", "temperature": 1.0, "seed": 2, "frequency_penalty": 0.5, "logprobs": 1}),
    ("/v1/completions", {"prompt": "A number: ", "seed": 3, "guided_regex": "[a-z0-9 ]{9000}", "ignore_eos": False}),
    ("/v1/responses", {"input": "How do I open a file?", "temperature": 1.0, "seed": 4, "max_output_tokens": TOKENS}),
]


@pytest.fixture
def three_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """Engines of one revision."""
    monkeypatch.setenv("BLADE_REVISION", "r1")
    engines = [engine(tmp_path, "--dtype", "float32", name=f"engine-{number}") for number in range(3)]
    endpoints = [
        {"url": each.url, "name": f"engine-{number}", "internal_url": each.internal_url, "revision": "r1"}
        for number, each in enumerate(engines)
    ]
    config = tmp_path / "router.json"
    # In turn: each engine has two of the six streams.
    config.write_text(json.dumps({"endpoints": endpoints, "policy": "round-robin"}))
    front = router(tmp_path, "--config", str(config))
    try:
        for program in [*engines, front]:
            program.wait_healthy()
        yield Fleet(engines, front)
    finally:
        for program in [front, *engines]:
            program.kill()


class Reader:
    """One client of a stream."""

    def __init__(self) -> None:
        self.text = ""
        self.events: list[dict[str, Any]] = []
        self.grown = asyncio.Event()

    async def read(self, client: httpx.AsyncClient, path: str, fields: dict[str, Any]) -> None:
        options = {"stream": True, "ignore_eos": True} if path == "/v1/responses" else LONG
        async with client.stream("POST", path, json={**options, **fields}) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    assert "error" not in event, event
                    self.events.append(event)
                    self.text += _text(event)
                    self.grown.set()

    async def has(self, events: int) -> None:
        while len(self.events) < events:
            self.grown.clear()
            await self.grown.wait()

    @property
    def outcome(self) -> tuple[str, Any, Any]:
        """The text, why it ended, and how many tokens it took."""
        last = self.events[-1]
        if "response" in last:
            return self.text, last["type"], last["response"]["usage"]["output_tokens"]
        reasons = [choice["finish_reason"] for event in self.events for choice in event["choices"]]
        return self.text, reasons[-1], last["usage"]["completion_tokens"]

    def check(self) -> None:
        """Check that the events form one stream, whichever engines sent them."""
        if "response" in self.events[-1]:
            assert [event["sequence_number"] for event in self.events] == list(range(len(self.events)))
            return
        assert len({(event["id"], event["created"]) for event in self.events}) == 1
        roles = [choice for event in self.events for choice in event["choices"] if "role" in choice.get("delta", ())]
        assert len(roles) == ("chat" in self.events[0]["object"])


def _text(event: dict[str, Any]) -> str:
    if event.get("type") == "response.output_text.delta":
        return str(event["delta"])
    return "".join(
        choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in event.get("choices", ())
    )


def _kill_engine_process(program: Program) -> None:
    """Kill the engine process; the API server is left, and can report it."""
    for child in psutil.Process(program.process.pid).children():
        if "blade_llm.engine.process" in child.cmdline():
            os.kill(child.pid, signal.SIGKILL)


def _metric(router: Program, name: str) -> float:
    lines = httpx.get(f"{router.internal_url}/metrics").text.splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def _resumed(router: Program) -> float:
    return _metric(router, 'blade_router_resumes_total{outcome="resumed"} ')


def _in_flight(router: Program, engine: int) -> float:
    return _metric(router, f'blade_router_endpoint_in_flight_requests{{endpoint="engine-{engine}"}} ')


def _wait_resumed(router: Program, streams: float) -> None:
    deadline = time.monotonic() + 60
    while _resumed(router) < streams:
        assert time.monotonic() < deadline, "the streams of the killed engine are not resumed"
        time.sleep(0.02)


@pytest.mark.soak  # test_tensor_parallel.py kills an engine under streams each time
async def test_two_of_three_engines_are_killed_and_no_stream_notices(three_replicas: Fleet) -> None:
    async with httpx.AsyncClient(base_url=three_replicas.router.url, timeout=300, trust_env=False) as client:
        whole = [Reader() for _ in STREAMS]
        async with asyncio.TaskGroup() as tasks:
            for reader, (path, fields) in zip(whole, STREAMS, strict=True):
                tasks.create_task(reader.read(client, path, fields))

        readers = [Reader() for _ in STREAMS]
        async with asyncio.TaskGroup() as tasks:
            for reader, (path, fields) in zip(readers, STREAMS, strict=True):
                tasks.create_task(reader.read(client, path, fields))
            for reader in readers:
                await reader.has(10)
            # The two that have most: under load an engine may have been passed over in its turn.
            first, second = sorted(range(3), key=lambda number: -_in_flight(three_replicas.router, number))[:2]
            killed = _in_flight(three_replicas.router, first)
            three_replicas.engines[first].kill()
            # A stream that its second engine has not gone on with is taken for what kills engines.
            await asyncio.to_thread(_wait_resumed, three_replicas.router, killed)
            killed += _in_flight(three_replicas.router, second)
            _kill_engine_process(three_replicas.engines[second])
        for reader, alone in zip(readers, whole, strict=True):
            assert reader.outcome == alone.outcome
            reader.check()
        assert _resumed(three_replicas.router) == killed >= 4
