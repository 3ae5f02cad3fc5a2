"""Two replicas with one thread each against one replica with two, behind the same router on the same two cores.

The load is a closed loop of streams of mixed lengths; every response is compared with the one the request gets alone
(fp32, greedy). The two set-ups take turns, so that a drift of the machine hits both. Also measured: how long an engine
takes from its start to its first 200 on ``/health``.

    python -m benchmarks.engine_replicas        QUICK=1 for a short run
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

from benchmarks.figures import QUICK, Figure, report
from benchmarks.fleet import Program, engine, fleet

SECONDS = 5.0 if QUICK else 12.0
ROUNDS = 2 if QUICK else 4
STREAMS = 16
TOPICS = ["len", "sorted", "open", "range", "print", "zip", "map", "isinstance"]

Prompt = tuple[str, int]


def requests(seed: int) -> list[Prompt]:
    """Prompts of 10 to 300 tokens with limits of 8 to 96 output tokens."""
    rng = random.Random(seed)
    return [
        (" ".join(f"What does {rng.choice(TOPICS)} do?" for _ in range(rng.randint(1, 40))), rng.randint(8, 96))
        for _ in range(64)
    ]


async def complete(client: httpx.AsyncClient, request: Prompt) -> tuple[str, int]:
    """Text and number of tokens of one streamed, greedy completion that runs to its full length."""
    prompt, max_tokens = request
    body = {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text, tokens = "", 0
    async with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            text += "".join(choice["text"] for choice in event["choices"])
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    return text, tokens


async def throughput(program: Program, prompts: list[Prompt], expected: list[str]) -> float:
    """Output tokens per second of a closed loop of ``STREAMS`` streams; raises when an output is not as expected."""
    deadline = time.perf_counter() + SECONDS
    done = 0

    async def user(number: int, client: httpx.AsyncClient) -> None:
        nonlocal done
        while time.perf_counter() < deadline:
            number = (number + STREAMS) % len(prompts)
            text, tokens = await complete(client, prompts[number])
            if text != expected[number]:
                raise AssertionError(f"request {number} got another output than it gets alone")
            done += tokens

    async with httpx.AsyncClient(base_url=program.url, timeout=120) as client:
        start = time.perf_counter()
        await asyncio.gather(*(user(number, client) for number in range(STREAMS)))
        return done / (time.perf_counter() - start)


async def alone(program: Program, prompts: list[Prompt]) -> list[str]:
    """What each request gets when nothing else runs."""
    async with httpx.AsyncClient(base_url=program.url, timeout=120) as client:
        return [(await complete(client, prompt))[0] for prompt in prompts]


def ready_seconds(folder: Path) -> float:
    """From the start of a process to its first 200 on ``/health``."""
    start = time.perf_counter()
    program = engine(folder, name="start")
    try:
        program.wait_healthy()
        return time.perf_counter() - start
    finally:
        program.kill()


def main() -> int:
    prompts = requests(seed=11)
    expected: list[str] = []
    rates: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ready = min(ready_seconds(folder) for _ in range(3))
        for _ in range(ROUNDS):
            for replicas in (1, 2):
                options = ("--dtype", "float32", "--disable_prompt_cache")
                with fleet(folder, replicas, *options, threads=2 // replicas) as running:
                    expected = expected or asyncio.run(alone(running.engines[0], prompts))
                    rates[replicas].append(asyncio.run(throughput(running.router, prompts, expected)))
    one, two = (statistics.median(rates[replicas]) for replicas in (1, 2))
    ratio = statistics.median(b / a for a, b in zip(rates[1], rates[2], strict=True))
    return report(
        "engine_replicas",
        [
            Figure("engine_ready", ready, "s", "<=", 5.0),
            Figure("one_replica_two_threads", one, "tokens/s"),
            Figure("two_replicas_one_thread_each", two, "tokens/s"),
            Figure("two_replicas_against_one", ratio, "ratio", ">=", 1.0),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
