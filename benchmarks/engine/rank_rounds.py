"""Rounds of requests that engines of one rank and of two compute in turns, so that neither has a quieter machine. Both
engines live in one process and its children."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from benchmarks.figures import QUICK
from benchmarks.peers.shapes import KNOWN_TOKENS
from blade_llm.config import EngineConfig
from blade_llm.engine.build import build_core
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest, RequestOutput
from blade_llm.sampling.parameters import SamplingParams

ROUNDS: Final = 2 if QUICK else 5
LENGTH: Final = 32 if QUICK else 64
PROMPT: Final = 128
MANY: Final = 8 if QUICK else 16
LARGE: Final = 16 if QUICK else 64
CORES: Final = 2
"""Of the machine; each rank has its part of them."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Of ranks, over those of one rank."""

    prefill: float
    decode: float
    whole: float
    """Of both: requests in a time."""


def core_of(model: Path, seqs: int = MANY, **ranks: Any) -> EngineCore:
    """An engine of ``seqs`` slots with the fields ``ranks`` of :class:`EngineConfig`, which share the cores."""
    config = EngineConfig(
        model=str(model),
        served_names=("m",),
        dtype="bfloat16",
        max_model_len=512,
        max_num_seqs=seqs,
        kv_cache_bytes=512 << 20,
        enable_prompt_cache=False,
        **ranks,
    )
    return build_core(msgspec.structs.replace(config, num_threads=CORES // config.num_ranks))


def prompts_of(count: int) -> list[list[int]]:
    """The same ones at each call."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, KNOWN_TOKENS, (PROMPT,), generator=generator).tolist() for _ in range(count)]


def outputs_of(core: EngineCore) -> Iterator[RequestOutput]:
    """All outputs until there is nothing to do."""
    while core.has_work:
        yield from core.step()


def compare(one: EngineCore, ranks: EngineCore, batch: int) -> Speeds:
    """Medians of rounds in turns. ``ranks``: as many as there are cores."""
    prompts = prompts_of(batch)
    _round(one, prompts, CORES)
    _round(ranks, prompts, 1)
    prefills, decodes, wholes = [], [], []
    for _ in range(ROUNDS):
        prefill, decode = _round(one, prompts, CORES)
        of_ranks, decode_of_ranks = _round(ranks, prompts, 1)
        prefills.append(prefill / of_ranks)
        decodes.append(decode / decode_of_ranks)
        wholes.append((prefill + decode) / (of_ranks + decode_of_ranks))
    return Speeds(*(statistics.median(each) for each in (prefills, decodes, wholes)))


def compare_steady(one: EngineCore, ranks: EngineCore, count: int, at_once: int) -> float:
    """The same for ``count`` requests of different lengths, a new one whenever one ends: ``at_once`` are there."""
    prompts = prompts_of(count)
    _steady(one, prompts, at_once, CORES)
    _steady(ranks, prompts, at_once, 1)
    rounds = [_steady(one, prompts, at_once, CORES) / _steady(ranks, prompts, at_once, 1) for _ in range(ROUNDS)]
    return statistics.median(rounds)


def _steady(core: EngineCore, prompts: Sequence[list[int]], at_once: int, threads: int) -> float:
    """Seconds until all have ended."""
    torch.set_num_threads(threads)
    lengths = [LENGTH // 2 + number * 7 % LENGTH for number in range(len(prompts))]
    waiting = iter(
        GenerateRequest(request_id=str(number), prompt_token_ids=prompt, sampling=_sampling(length))
        for number, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    )
    start = time.perf_counter()
    for request in itertools.islice(waiting, at_once):
        core.add(request)
    for output in outputs_of(core):
        if output.finish_reason is not None:
            for request in itertools.islice(waiting, 1):
                core.add(request)
    return time.perf_counter() - start


def _sampling(length: int) -> SamplingParams:
    return SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True, seed=1)


def _round(core: EngineCore, prompts: Sequence[list[int]], threads: int) -> tuple[float, float]:
    """Seconds of requests with these prompts at once: to the last first token, and after it."""
    sampling = _sampling(LENGTH)
    torch.set_num_threads(threads)  # of the whole process, which has both engines
    waiting = {str(number) for number in range(len(prompts))}
    start = time.perf_counter()
    for number, prompt in enumerate(prompts):
        core.add(GenerateRequest(request_id=str(number), prompt_token_ids=prompt, sampling=sampling))
    began: float | None = None
    for output in outputs_of(core):
        waiting.discard(output.request_id)
        if began is None and not waiting:
            began = time.perf_counter()
    assert began is not None
    return began - start, time.perf_counter() - began
