"""What running streams notice of a long prompt: the time between their tokens while 8,192 tokens are computed."""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure
from benchmarks.peers.rounds import words
from blade_llm.config import EngineConfig
from blade_llm.engine.build import build_core
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest
from blade_llm.sampling.parameters import SamplingParams

STREAMS: Final = 4
PROMPT: Final = 8192
ALONE: Final = 300
"""Steps without the prompt."""


def stall_figures(model: Path, threads: int) -> list[Figure]:
    """p99 of the time between tokens with the prompt arriving, divided by the median without it."""
    core = build_core(
        EngineConfig(
            model=str(model),
            served_names=("m",),
            num_threads=threads,
            max_model_len=PROMPT + 64,
            kv_cache_bytes=512 << 20,
        )
    )
    dice = random.Random(0)
    for number in range(STREAMS):
        _add(core, f"stream-{number}", words(dice, 128), 4096)
    while len(_step(core)) < STREAMS:
        pass
    alone = [_gap(core) for _ in range(ALONE)]
    _add(core, "long", words(dice, PROMPT), 1)
    gaps: list[float] = []
    began = time.perf_counter()
    while True:
        begin = time.perf_counter()
        arrived = _step(core)
        gaps.append(time.perf_counter() - begin)
        if "long" in arrived:
            break
    usual = statistics.median(alone)
    worst = sorted(gaps)[int(0.99 * len(gaps))]
    return [
        Figure("tpot_alone", 1e3 * usual, "ms"),
        Figure("prefill_8k_beside_streams", time.perf_counter() - began, "s"),
        Figure("tpot_p99_while_8k_prompt_arrives", worst / sorted(alone)[int(0.99 * len(alone))], "x", "<=", 2.0),
    ]


def _add(core: EngineCore, name: str, prompt: list[int], max_tokens: int) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, seed=0)
    core.add(GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling))


def _step(core: EngineCore) -> set[str]:
    """Who got a token."""
    return {output.request_id for output in core.step()}


def _gap(core: EngineCore) -> float:
    """Seconds until every stream has its next token."""
    begin = time.perf_counter()
    _step(core)
    return time.perf_counter() - begin
