"""PART=engine: how near the whole engine comes to what the GPU can do, with dummy weights of Qwen2.5-7B in bf16.

Decode throughput (CUDA graphs, overlapped scheduling, greedy sampling) against the time it takes to read the weights
and the batch's KV cache once, or to multiply where that takes longer; prefill against the largest matrix product's
speed. Both limits are measured in the same run. Mixed steps are timed as CUDA graphs and launched kernel by kernel.
Outputs are checked against transformers with the same weights first.
"""

from __future__ import annotations

import gc
import random
import sys
import time

import torch

from benchmarks.figures import QUICK, Figure
from benchmarks.gpu.generation import add, build, generate, prompt, share_right, transformers_model
from benchmarks.gpu.machine import DRY, bandwidth, finish, limits, peak, synchronize
from benchmarks.gpu.shapes import MODEL
from blade_llm.engine.core import EngineCore
from blade_llm.scheduling.budget.prefill import PrefillBudget

CONTEXT = 40 if DRY else 1024
BATCHES = (1, 2) if DRY else (1, 8, 64, 128, 256)
STEPS = 8 if DRY else 64 if QUICK else 200
PREFILLS = (32,) if DRY else (1024, 8192)
CHUNK = 8192
STREAMS = 2 if DRY else 16
"""Decode while :func:`prefill_beside_decodes` and :func:`mixed_step` measure."""
KV_TOKENS = 3 * CONTEXT * max(BATCHES) + CHUNK
MIXED = (6, 10) if DRY else (64, 128, 256, 512, 1024, 2048)
"""Tokens of mixed steps, each with a graph of its size."""
MIXED_STEPS = 2 if DRY else 10
FEW_KV_TOKENS = 2 * CONTEXT * STREAMS + (MIXED_STEPS + 4) * max(MIXED)
"""What mixed steps need."""


def main() -> int:
    torch.manual_seed(0)
    results = limits()
    start = time.perf_counter()
    core = build(
        MODEL,
        max_num_seqs=max(BATCHES),
        max_batch_tokens=CHUNK,
        kv_tokens=KV_TOKENS,
    )
    results.append(Figure("ready", time.perf_counter() - start, "s"))
    results.append(Figure("tokens_right", check(core), "share", ">=", 0.99))
    for length in PREFILLS:
        results += prefill(core, length)
        results += prefill_beside_decodes(core, length)
    for tokens in MIXED:
        results += mixed_step(core, tokens, "replayed")
    for batch in BATCHES:
        results += decode(core, batch)
        print(*results[-3:], sep="\n", flush=True)
    del core
    free_memory()
    launched = build(
        MODEL, max_num_seqs=STREAMS + 1, max_batch_tokens=CHUNK, kv_tokens=FEW_KV_TOKENS, cuda_graph_max_tokens=0
    )
    for tokens in MIXED:
        results += mixed_step(launched, tokens, "launched")
        by_name = {figure.name: figure.value for figure in results}
        ratio = by_name[f"mixed_{tokens}_launched"] / by_name[f"mixed_{tokens}_replayed"]
        # Where the launches are hidden anyway, a graph must not cost; without a GPU there are none.
        results.append(Figure(f"mixed_{tokens}_speedup", ratio, "", *(() if DRY else (">=", 0.95))))
        print(results[-1], flush=True)
    return finish("engine", results)


def free_memory() -> None:
    """Give back what an engine that is gone had."""
    gc.collect()
    if not DRY:
        torch.cuda.empty_cache()


def mixed_step(core: EngineCore, tokens: int, name: str) -> list[Figure]:
    """Time of a step with ``STREAMS`` decodes and prefill, ``tokens`` together."""
    rng = random.Random(tokens)
    budget = core.scheduler.budget
    core.scheduler.budget = FixedBudget(tokens - STREAMS)
    streams = [add(core, prompt(MODEL, 8, rng), CONTEXT) for _ in range(STREAMS)]
    for _ in range(8 * STREAMS):  # past their prompts
        core.step()
    filler = add(core, prompt(MODEL, (tokens - STREAMS) * (MIXED_STEPS + 2), rng), 1)
    core.step()
    synchronize()
    start = time.perf_counter()
    for _ in range(MIXED_STEPS):
        core.step()
    synchronize()
    seconds = (time.perf_counter() - start) / MIXED_STEPS
    core.abort([*streams, filler])
    while core.has_work:
        core.step()
    core.scheduler.budget = budget
    return [Figure(f"mixed_{tokens}_{name}", seconds * 1e3, "ms")]


class FixedBudget(PrefillBudget):
    """So many prefill tokens in every step."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self._tokens = tokens

    def allowance(self, num_decodes: int, num_prefills: int = 1, *, forced: int = 0) -> int | None:
        return self._tokens


def check(core: EngineCore) -> float:
    """Share of tokens that are right, of prompts of several lengths in one batch."""
    rng = random.Random(1)
    prompts = [prompt(MODEL, length, rng) for length in (5, 17, 40, 3 * CONTEXT // 4)]
    outputs = generate(core, prompts, 16)
    model = transformers_model(MODEL)
    share = share_right(model, prompts, outputs)
    del model
    if not DRY:
        torch.cuda.empty_cache()
    return share


def decode(core: EngineCore, batch: int) -> list[Figure]:
    """Tokens a second of ``batch`` streams in their steady state."""
    rng = random.Random(batch)
    lengths = {add(core, prompt(MODEL, CONTEXT, rng), 2 * CONTEXT): 0 for _ in range(batch)}

    def step() -> int:
        outputs = core.step()
        for output in outputs:
            assert output.finish_reason is None, "a stream ended before it was measured"
            lengths[output.request_id] += len(output.token_ids)
        return sum(len(output.token_ids) for output in outputs)

    while not all(lengths.values()):
        step()
    for _ in range(4):
        step()
    tokens = 0
    start = time.perf_counter()
    for _ in range(STEPS):
        tokens += step()
    rate = tokens / (time.perf_counter() - start)
    context = CONTEXT + sum(lengths.values()) / batch - STEPS / 2
    core.abort(list(lengths))
    while core.has_work:
        core.step()
    weights = max(2 * MODEL.parameters / bandwidth(), 2 * MODEL.parameters * batch / peak())
    bound = batch / (weights + batch * context * MODEL.kv_bytes / bandwidth())
    target = 0.0 if DRY else 0.8 if batch == 1 else 0.75
    return [
        Figure(f"decode_b{batch}", rate, "tokens/s"),
        Figure(f"decode_b{batch}_context", context, "tokens"),
        Figure(f"decode_b{batch}_of_roofline", rate / bound, "share", ">=", target),
    ]


def prefill(core: EngineCore, length: int) -> list[Figure]:
    """Time from a request's arrival to its first token, and the arithmetic it takes."""
    rng = random.Random(length)
    times = []
    for _ in range(5):
        token_ids = prompt(MODEL, length, rng)
        synchronize()
        start = time.perf_counter()
        generate(core, [token_ids], 1)
        times.append(time.perf_counter() - start)
    body = MODEL.parameters - MODEL.hidden * MODEL.vocabulary  # the head computes one row only
    flops = 2 * body * length + 2 * MODEL.layers * MODEL.heads * MODEL.head_dim * length**2
    name = f"prefill_{length}"
    return [
        Figure(f"{name}_time", min(times) * 1e3, "ms"),
        Figure(f"{name}_of_peak", flops / min(times) / peak(), "share", ">=", 0.0 if DRY else 0.6),
    ]


def prefill_beside_decodes(core: EngineCore, length: int) -> list[Figure]:
    """Time to the first token of a prompt that comes while others decode, and what it does to their mean time between
    tokens."""
    rng = random.Random(length)
    streams = [add(core, prompt(MODEL, 8, rng), CONTEXT + 8 * STEPS) for _ in range(STREAMS)]
    for _ in range(2 * STREAMS):  # past their prompts
        core.step()
    start = time.perf_counter()
    for _ in range(STEPS):
        core.step()
    alone = (time.perf_counter() - start) / STEPS
    times = []
    for _ in range(5):  # the prefill budget learns from the first ones
        request_id = add(core, prompt(MODEL, length, rng), 1)
        start, steps, done = time.perf_counter(), 0, False
        while not done:
            done = any(output.request_id == request_id for output in core.step())
            steps += 1
        seconds = time.perf_counter() - start
        times.append((seconds, seconds / steps))
    core.abort(streams)
    while core.has_work:
        core.step()
    first_token, between = min(times)
    name = f"prefill_{length}_beside_{STREAMS}"
    return [
        Figure(f"{name}_ttft", first_token * 1e3, "ms"),
        Figure(f"{name}_tbt_ratio", between / alone, "", *(() if DRY else ("<=", 2.2))),
    ]


if __name__ == "__main__":
    sys.exit(main())
