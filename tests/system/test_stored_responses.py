"""A conversation by ``previous_response_id`` through routers, in front of engines that keep different responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchmarks.fleet import Fleet, Program, engine, router
from engine_support.exposition import read_exposition
from engine_support.server_process import wait_until

from blade_protocol import metrics

QUESTIONS = ["What does len do?", "And abs?", "And sum?", "And max?"]


@pytest.fixture
def two_replicas(tmp_path: Path) -> Iterator[tuple[Fleet, Path]]:
    engines = [engine(tmp_path, "--dtype", "float32", name=f"engine-{number}") for number in range(2)]
    config = tmp_path / "router.json"
    endpoints = [{"url": each.url, "name": f"engine-{number}"} for number, each in enumerate(engines)]
    config.write_text(json.dumps({"endpoints": endpoints, "policy": "round-robin"}))
    front = router(tmp_path, "--config", str(config))
    try:
        for program in [*engines, front]:
            program.wait_healthy()
        wait_until(lambda: _num_up(front) == len(engines))
        yield Fleet(engines, front), config
    finally:
        for program in [front, *engines]:
            program.kill()


def _num_up(front: Program) -> float:
    """Engines that the router may choose."""
    counts = read_exposition(httpx.get(f"{front.internal_url}/metrics", timeout=20).text)
    return sum(value for name, value in counts.items() if name.startswith(metrics.ROUTER_ENDPOINT_UP))


def _ask(url: str, **fields: Any) -> httpx.Response:
    body = {"temperature": 0, "max_output_tokens": 30, **fields}
    return httpx.post(f"{url}/v1/responses", json=body, timeout=60)


def test_conversations_stay_on_the_engine_that_keeps_them(two_replicas: tuple[Fleet, Path], tmp_path: Path) -> None:
    fleet, config = two_replicas
    url = fleet.router.url
    threads: list[list[dict[str, Any]]] = [[], [], []]
    where: set[str] = set()
    for question in QUESTIONS:
        for thread in threads:
            found = _ask(url, input=question, **({"previous_response_id": thread[-1]["id"]} if thread else {}))
            assert found.status_code == 200, found.text
            thread.append(found.json())
            where.add(found.headers["x-blade-endpoint"])
    assert len(where) == 2
    for thread in threads:
        items: list[dict[str, Any]] = []
        for question, body in zip(QUESTIONS, thread, strict=True):
            items.append({"role": "user", "content": question})
            whole = _ask(url, input=items, store=False).json()
            assert body["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
            items += body["output"]
    (tmp_path / "another").mkdir()
    again = router(tmp_path / "another", "--config", str(config))
    try:
        again.wait_healthy()
        wait_until(lambda: _num_up(again) == len(fleet.engines))
        for thread in threads:
            assert httpx.get(f"{again.url}/v1/responses/{thread[-1]['id']}", timeout=20).json() == thread[-1]
        fleet.engines[0].kill()
        found = [_ask(again.url, input="x", previous_response_id=thread[-1]["id"]).status_code for thread in threads]
        assert sorted(set(found)) == [200, 503]
    finally:
        again.kill()
