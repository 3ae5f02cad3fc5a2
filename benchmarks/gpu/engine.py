"""PART=engine: how near the whole engine comes to what the GPU can do, with dummy weights of Qwen2.5-7B in bf16.

Decode throughput (CUDA graphs, overlapped scheduling, greedy sampling) against the time it takes to read the weights
and the batch's KV cache once, or to multiply where that takes longer; prefill against the largest matrix product's
speed. Both limits are measured in the same run. Mixed steps are timed as CUDA graphs and launched kernel by kernel, and
decodes with LoRA adapters beside those without. Outputs are checked against transformers with the same weights first.

``GPU_PROFILE=1``: also the kernels of a decode step and of a prefill by their time, in ``gpu_profile.txt``.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.figures import QUICK, Figure
from benchmarks.gpu.generation import add, build, clear, generate, judge, prompt, transformers_model, write_adapter
from benchmarks.gpu.machine import DRY, FOLDER, Results, bandwidth, limits, peak, synchronize
from benchmarks.gpu.shapes import MODEL
from blade_llm.engine.core import EngineCore
from blade_llm.engine.start import freeze_gc_heap
from blade_llm.scheduling.budget.prefill import PrefillBudget

CONTEXT = 40 if DRY else 1024
BATCHES = (1, 2) if DRY else (1, 8, 64, 128, 256)
STEPS = 8 if DRY else 64 if QUICK else 200
PREFILLS = (32,) if DRY else (1024, 8192)
CHUNK = 8192
STREAMS = 2 if DRY else 16
"""Decode while :func:`prefill_beside_decodes`, :func:`mixed_step` and :func:`adapters` measure."""
KV_TOKENS = 3 * CONTEXT * max(BATCHES) + CHUNK
MIXED = (6, 10) if DRY else (64, 128, 256, 512, 1024, 2048)
"""Tokens of mixed steps, each with a graph of its size."""
MIXED_STEPS = 2 if DRY else 10
FEW_KV_TOKENS = 3 * CONTEXT * STREAMS + (MIXED_STEPS + 4) * max(MIXED)
"""What mixed steps need."""
FEW_GRAPHS: dict[str, Any] = {"cuda_graph_batch_sizes": BATCHES, "cuda_graph_token_sizes": MIXED} if QUICK else {}
"""In the short form graphs are captured only of what is measured."""
RANK = 16
"""Of the LoRA adapter."""
PROFILE = bool(os.environ.get("GPU_PROFILE")) and not DRY


def main() -> int:
    torch.manual_seed(0)
    results = Results("engine")
    replayed(results)
    free_memory()
    with tempfile.TemporaryDirectory() as scratch:
        launched(results, Path(scratch))
    return results.finish()


def replayed(results: Results) -> None:
    """All that has CUDA graphs."""
    began, start = time.perf_counter(), Start(max_num_seqs=max(BATCHES), kv_tokens=KV_TOKENS, **FEW_GRAPHS)
    if not results.measure("start", start):
        return
    core = start.core
    ready = time.perf_counter() - began
    results.measure("limits", limits)
    results.measure("outputs", check, core)
    for batch in BATCHES:
        results.measure(f"decode_b{batch}", decode, core, batch)
    for length in PREFILLS:
        results.measure(f"prefill_{length}", prefill, core, length)
        results.measure(f"prefill_{length}_beside_{STREAMS}", prefill_beside_decodes, core, length)
    for tokens in MIXED:
        results.measure(f"mixed_{tokens}_replayed", mixed_step, core, tokens, "replayed")
    if not FEW_GRAPHS:
        results.measure("ready", lambda: [Figure("ready", ready, "s")])


def launched(results: Results, scratch: Path) -> None:
    """Mixed steps kernel by kernel, and decodes with adapters."""
    folder = write_adapter(MODEL, scratch / "adapter", RANK)
    start = Start(
        max_num_seqs=STREAMS + 1,
        kv_tokens=FEW_KV_TOKENS,
        cuda_graph_max_tokens=0,
        enable_lora=True,
        lora_modules=(("adapter", str(folder)),),
    )
    if not results.measure("start without graphs of mixed steps", start):
        return
    for tokens in MIXED:
        if results.measure(f"mixed_{tokens}_launched", mixed_step, start.core, tokens, "launched"):
            results.measure(f"mixed_{tokens}_speedup", speedup, results, tokens)
    results.measure("adapters", adapters, start.core)


class Start:
    """Builds an engine, which is then :attr:`core`; has no figures."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    def __call__(self) -> list[Figure]:
        self.core = build(MODEL, max_batch_tokens=CHUNK, **self._options)
        gc.collect()
        freeze_gc_heap()  # as the engine's process does
        return []


def speedup(results: Results, tokens: int) -> list[Figure]:
    """What the graph of a mixed step gains."""
    times = {figure.name: figure.value for figure in results.figures}
    ratio = times[f"mixed_{tokens}_launched"] / times[f"mixed_{tokens}_replayed"]
    # Where the launches are hidden anyway, a graph must not cost; without a GPU there are none.
    return [Figure(f"mixed_{tokens}_speedup", ratio, "", *(() if DRY else (">=", 0.95)))]


def adapters(core: EngineCore) -> Iterator[Figure]:
    """Decodes of ``STREAMS`` sequences that all use an adapter, beside the same without."""
    seconds = {}
    for name in ("", "adapter"):
        clear(core)
        for i in range(STREAMS):
            add(core, prompt(MODEL, 8, random.Random(i)), CONTEXT, name)
        for _ in range(2 * STREAMS):  # past their prompts
            core.step()
        synchronize()
        start = time.perf_counter()
        for _ in range(STEPS):
            core.step()
        seconds[name] = (time.perf_counter() - start) / STEPS
    yield Figure(f"decode_b{STREAMS}_step", seconds[""] * 1e3, "ms")
    yield Figure(f"decode_b{STREAMS}_adapters_step", seconds["adapter"] * 1e3, "ms")


def free_memory() -> None:
    """Give back what an engine that is gone had."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    if not DRY:
        torch.cuda.empty_cache()


def mixed_step(core: EngineCore, tokens: int, name: str) -> list[Figure]:
    """Time of a step with ``STREAMS`` decodes and prefill, ``tokens`` together."""
    clear(core)
    rng = random.Random(tokens)
    budget = core.scheduler.budget
    core.scheduler.budget = FixedBudget(tokens - STREAMS)
    for _ in range(STREAMS):
        add(core, prompt(MODEL, 8, rng), CONTEXT)
    for _ in range(8 * STREAMS):  # past their prompts
        core.step()
    add(core, prompt(MODEL, (tokens - STREAMS) * (MIXED_STEPS + 2), rng), 1)
    core.step()
    synchronize()
    start = time.perf_counter()
    for _ in range(MIXED_STEPS):
        core.step()
    synchronize()
    seconds = (time.perf_counter() - start) / MIXED_STEPS
    core.scheduler.budget = budget
    return [Figure(f"mixed_{tokens}_{name}", seconds * 1e3, "ms")]


class FixedBudget(PrefillBudget):
    """So many prefill tokens in every step."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self._tokens = tokens

    def allowance(self, num_decodes: int, num_prefills: int = 1, *, forced: int = 0) -> int | None:
        return self._tokens


def check(core: EngineCore) -> Iterator[Figure]:
    """Whether tokens are right, of prompts of several lengths in one batch, and how far from fp32 their
    log-probabilities are, beside transformers'."""
    clear(core)
    rng = random.Random(1)
    answers = generate(
        core, [prompt(MODEL, length, rng) for length in (5, 17, 40, 3 * CONTEXT // 4)], 32, logprobs=True
    )
    judged = judge(transformers_model(MODEL), answers)
    free_memory()
    yield Figure("tokens_right", judged.right, "share", ">=", 0.99)
    yield Figure("logprob_error", judged.error, "nats")
    yield Figure("transformers_logprob_error", judged.transformers_error, "nats")
    # Both are sums of the same roundings, in other orders; in the dry run there are none.
    ratio = 1.0 if DRY else judged.error / judged.transformers_error
    yield Figure("logprob_error_ratio", ratio, "", "<=", 1.3)


def decode(core: EngineCore, batch: int) -> list[Figure]:
    """Tokens a second of ``batch`` streams in their steady state."""
    clear(core)
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
    times = [time.perf_counter()]
    for _ in range(STEPS):
        tokens += step()
        times.append(time.perf_counter())
    rate = tokens / (times[-1] - times[0])
    slowest = max(after - before for before, after in pairwise(times))
    context = CONTEXT + sum(lengths.values()) / batch - STEPS / 2
    if PROFILE:
        profile(f"decode_b{batch}", step, 4)
    weights = max(2 * MODEL.parameters / bandwidth(), 2 * MODEL.parameters * batch / peak())
    bound = batch / (weights + batch * context * MODEL.kv_bytes / bandwidth())
    target = 0.0 if DRY else 0.8 if batch == 1 else 0.75
    return [
        Figure(f"decode_b{batch}", rate, "tokens/s"),
        Figure(f"decode_b{batch}_context", context, "tokens"),
        Figure(f"decode_b{batch}_slowest_step", slowest * 1e3, "ms"),
        Figure(f"decode_b{batch}_of_roofline", rate / bound, "share", ">=", target),
    ]


def prefill(core: EngineCore, length: int) -> list[Figure]:
    """Time from a request's arrival to its first token, and the arithmetic it takes."""
    clear(core)
    rng = random.Random(length)
    times = []
    for _ in range(5):
        token_ids = prompt(MODEL, length, rng)
        synchronize()
        start = time.perf_counter()
        generate(core, [token_ids], 1)
        times.append(time.perf_counter() - start)
    if PROFILE:
        profile(f"prefill_{length}", lambda: generate(core, [prompt(MODEL, length, rng)], 1), 1)
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
    clear(core)
    rng = random.Random(length)
    for _ in range(STREAMS):
        add(core, prompt(MODEL, 8, rng), CONTEXT + 8 * STEPS)
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
    first_token, between = min(times)
    name = f"prefill_{length}_beside_{STREAMS}"
    return [
        Figure(f"{name}_ttft", first_token * 1e3, "ms"),
        Figure(f"{name}_tbt_ratio", between / alone, "", *(() if DRY else ("<=", 2.2))),
    ]


def profile(name: str, run: Callable[[], object], count: int) -> None:
    """Append the kernels of ``run`` by their time to ``gpu_profile.txt``: microseconds of each of ``count`` runs."""
    from torch.profiler import ProfilerActivity

    synchronize()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        start = time.perf_counter()
        for _ in range(count):
            run()
        synchronize()
        seconds = (time.perf_counter() - start) / count
    kernels = sorted(profiler.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    busy = sum(kernel.self_device_time_total for kernel in kernels) / count
    with (FOLDER / "gpu_profile.txt").open("a", encoding="utf-8") as file:
        print(f"== {name}: {seconds * 1e6:.0f} us, of which kernels {busy:.0f}", file=file)
        for kernel in kernels[:25]:
            took, calls = kernel.self_device_time_total / count, kernel.count / count
            print(f"{took:9.1f} {calls:6.1f} {took / max(calls, 1e-9):8.2f} {kernel.key[:110]}", file=file)


if __name__ == "__main__":
    sys.exit(main())
