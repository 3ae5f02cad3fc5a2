"""Time to the first token of two of our engines behind our router, by policy: 32 prefixes, of which a cache holds half.

Engines have the shape of Qwen2.5-0.5B, random weights and one thread each. Policies take turns before the same engines,
each with prefixes of its own, all sent twice before it is measured.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import string
import tempfile
import time
from pathlib import Path

import httpx
from tokenizers import Tokenizer

from benchmarks.figures import QUICK, Figure
from benchmarks.fleet import Program, engine, router
from benchmarks.peers.model import random_model
from benchmarks.peers.peers import CACHE
from benchmarks.router.load import percentile
from benchmarks.router.rounds import Context
from benchmarks.router.routers import LOAD_CPU, ROUTER_CPU

POLICIES = ("auto", "round-robin", "least-request")
WANTED = {"round-robin": 2.0, "least-request": 1.5}
"""How many times ours must be faster."""
PREFIXES = 32
CHARACTERS = 512
"""Of a prefix: two blocks of the router's index."""
KV_BLOCK = 16
CLIENTS = 3
REQUESTS = 48 if QUICK else 96
TOKENS = 4


def prefixes(seed: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(string.ascii_lowercase, k=CHARACTERS)) for _ in range(PREFIXES)]


async def run(context: Context) -> list[Figure]:
    model = random_model(CACHE / "models" / "qwen2-0.5b")
    tokens = max(len(Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids) for text in prefixes(0))
    blocks = (PREFIXES // 2) * (tokens // KV_BLOCK + 1) + 4 * CLIENTS
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        args = ("--max_kv_blocks", str(blocks), "--max_model_len", "2048")
        cpus = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {ROUTER_CPU, LOAD_CPU})  # engines inherit it, and are not to share one core
        engines = [engine(folder, *args, model=model, name=f"engine-{at}") for at in range(2)]
        try:
            for program in engines:
                await asyncio.to_thread(program.wait_healthy, 120.0)
            for seed, policy in enumerate(POLICIES):
                times[policy] = await _measure(folder, engines, policy, seed)
        finally:
            os.sched_setaffinity(0, cpus)
            for program in engines:
                program.kill()
    made = []
    for part, share in (("p50", 0.5), ("p99", 0.99)):
        ours = percentile(times["auto"], share)
        made.append(Figure(f"real_engines_ttft_{part}", ours * 1e3, "ms"))
        for policy, wanted in WANTED.items():
            other = percentile(times[policy], share)
            made.append(Figure(f"real_engines_ttft_{part}_of_{policy}", other * 1e3, "ms"))
            made.append(Figure(f"real_engines_ttft_{part}_{policy}_by_auto", other / ours, "x", ">=", wanted))
    return made


async def _measure(folder: Path, engines: list[Program], policy: str, seed: int) -> list[float]:
    """Seconds to the first token of each request, in the order they were sent."""
    front = router(folder, "--endpoints", ",".join(program.url for program in engines), "--policy", policy)
    try:
        await asyncio.to_thread(front.wait_healthy)
        texts, rng = prefixes(seed), random.Random(1)
        async with httpx.AsyncClient(base_url=front.url, timeout=120, trust_env=False) as client:
            await _crowd(client, texts + texts)
            return await _crowd(client, rng.choices(texts, k=REQUESTS))
    finally:
        front.kill()


async def _crowd(client: httpx.AsyncClient, texts: list[str]) -> list[float]:
    """``CLIENTS`` at a time send these prompts, each with an end of its own."""
    times = [0.0] * len(texts)
    tickets = iter(range(len(texts)))

    async def work() -> None:
        for at in tickets:
            times[at] = await _first_token(client, f"{texts[at]} {next(_ends)}")

    await asyncio.gather(*(work() for _ in range(CLIENTS)))
    return times


_ends = itertools.count()


async def _first_token(client: httpx.AsyncClient, prompt: str) -> float:
    body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    started, first = time.perf_counter(), 0.0
    async with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {") and not first:
                first = time.perf_counter() - started
    if not first:
        raise AssertionError("a response without a token")
    return first
