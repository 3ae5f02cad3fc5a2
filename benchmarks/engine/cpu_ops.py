"""Every CPU operator beside the linear layer: the C++ implementation against the torch one.

Run it as ``python -m benchmarks.engine.cpu_ops [--threads N]``. Shapes are Qwen2.5-0.5B's in bf16. The two take turns
in one process and the fastest run of each counts: what a quiet machine would do; trust ratios before microseconds. A
speed counts only for results that agree. Attention is also compared with ``scaled_dot_product_attention`` over a cache
that is not paged, in the form that is fastest (heads that share keys folded into the query length).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.figures import QUICK, Figure, report
from blade_llm.kernels import native
from blade_llm.kernels.activate import native as gate
from blade_llm.kernels.activate import torch as gate_reference
from blade_llm.kernels.argmax import native as argmax
from blade_llm.kernels.argmax import torch as argmax_reference
from blade_llm.kernels.gumbel_argmax import native as gumbel
from blade_llm.kernels.gumbel_argmax import torch as gumbel_reference
from blade_llm.kernels.paged_attention import RaggedBatch
from blade_llm.kernels.paged_attention import native as attention
from blade_llm.kernels.paged_attention import torch as attention_reference
from blade_llm.kernels.rms_norm import native as norm
from blade_llm.kernels.rms_norm import torch as norm_reference
from blade_llm.kernels.rope_write_kv import native as rope
from blade_llm.kernels.rope_write_kv import torch as rope_reference
from blade_llm.kernels.top_k_top_p import native as filters
from blade_llm.kernels.top_k_top_p import torch as filters_reference

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 14, 2, 64, 16
HIDDEN, INNER, VOCABULARY = 896, 4864, 151_936
SECONDS = 0.3 if QUICK else 2.0
"""Measuring time of each comparison."""

Run = Callable[[], object]


@dataclass(frozen=True)
class Comparison:
    """One operator at one size."""

    name: str
    runs: dict[str, Run]
    """``native`` and what it is compared with."""
    agree: bool
    target_us: float = 0.0
    """Target on two idle cores."""
    at_least: float = 0.0
    """Ratio to the fastest of the others."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    torch.set_num_threads(parser.parse_args().threads)
    torch.manual_seed(0)
    if native.library() is None:
        print("no native operators on this machine", file=sys.stderr)
        return 1
    figures: list[Figure] = []
    for comparison in [*attentions(), *elementwise(), *sampling()]:
        if not comparison.agree:
            print(f"{comparison.name}: the results differ", file=sys.stderr)
            return 1
        times = fastest(comparison.runs)
        mine, best = times.pop("native"), min(times.values())
        others = ", ".join(f"{name} {value:.1f}" for name, value in times.items())
        goal = f", two idle cores should take {comparison.target_us:g}" if comparison.target_us else ""
        print(f"{comparison.name}: native {mine:.1f} us, {others}{goal}", flush=True)
        figures.append(Figure(f"cpu_{comparison.name}_us", mine, "us"))
        relation = ">=" if comparison.at_least else ""
        figures.append(Figure(f"cpu_{comparison.name}_ratio", best / mine, "x", relation, comparison.at_least))
    return report("cpu_ops", figures)


def fastest(runs: dict[str, Run]) -> dict[str, float]:
    """Microseconds of each one's fastest run; they take turns until the time is over."""
    best = dict.fromkeys(runs, float("inf"))
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for name, run in runs.items():
            for _ in range(3):  # the first brings its data back into the cache
                begin = time.perf_counter()
                run()
                best[name] = min(best[name], time.perf_counter() - begin)
    return {name: value * 1e6 for name, value in best.items()}


def attentions() -> list[Comparison]:
    cases = [
        ("decode_1x128", [1], [128], 15.0),
        ("decode_1x1024", [1], [1024], 41.0),
        ("decode_1x4096", [1], [4096], 194.0),
        ("decode_16x128", [1] * 16, [128] * 16, 0.0),
        ("decode_16x1024", [1] * 16, [1024] * 16, 600.0),
        ("prefill_1024", [1024], [1024], 2500.0),
        ("chunk_512_of_4096", [512], [4096], 0.0),
        ("mixture", [1] * 8 + [256], [700] * 8 + [256], 0.0),
    ]
    return [attention_of(f"attention_{name}", counts, lengths, target) for name, counts, lengths, target in cases]


def attention_of(name: str, counts: list[int], lengths: list[int], target: float) -> Comparison:
    blocks = [-(-length // BLOCK) for length in lengths]
    keys, values = (torch.randn(sum(blocks), BLOCK, KV_HEADS, HEAD_DIM).bfloat16() for _ in range(2))
    order, table = torch.randperm(sum(blocks)).int(), torch.zeros(len(counts), max(blocks), dtype=torch.int32)
    for row, (end, count) in enumerate(zip(torch.tensor(blocks).cumsum(0).tolist(), blocks, strict=True)):
        table[row, :count] = order[end - count : end]
    batch = RaggedBatch.of(torch.arange(len(counts)), counts, lengths)
    q, scale = torch.randn(sum(counts), HEADS, HEAD_DIM).bfloat16(), HEAD_DIM**-0.5
    mine = attention.prepare(batch, table, keys, HEADS, False)
    theirs = attention_reference.prepare(batch, table, keys, HEADS, False)
    runs: dict[str, Run] = {
        "native": lambda: attention.paged_attention(q, keys, values, mine, scale, 0),
        "torch": lambda: attention_reference.paged_attention(q, keys, values, theirs, scale, 0),
    }
    if len(set(lengths)) == 1 and counts[0] in (1, lengths[0]):
        runs["sdpa_contiguous"] = contiguous_sdpa(len(counts), counts[0], lengths[0])
    return Comparison(name, runs, close(runs["native"](), runs["torch"]()), target, 1.0)


def contiguous_sdpa(batch: int, count: int, length: int) -> Run:
    """Attention over a cache that is not paged."""
    keys, values = (torch.randn(batch, KV_HEADS, length, HEAD_DIM).bfloat16() for _ in range(2))
    if count == 1:
        q = torch.randn(batch, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM).bfloat16()
        return lambda: F.scaled_dot_product_attention(q, keys, values)
    queries = torch.randn(batch, HEADS, length, HEAD_DIM).bfloat16()
    return lambda: F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)


def elementwise() -> list[Comparison]:
    result = []
    for rows in (1, 16, 256):
        x, residual, weight = (torch.randn(n, HIDDEN).bfloat16() for n in (rows, rows, 1))
        weight = weight[0]
        gate_up = torch.randn(rows, 2 * INNER).bfloat16()
        qkv = torch.randn(rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM).bfloat16()
        cos, sin, slot_mapping = torch.rand(rows, HEAD_DIM // 2), torch.rand(rows, HEAD_DIM // 2), torch.arange(rows)
        caches = [torch.zeros(-(-rows // BLOCK), BLOCK, KV_HEADS, HEAD_DIM).bfloat16() for _ in range(2)]
        turn = (qkv, cos, sin, slot_mapping, *caches, HEADS, None, None, 1e-6)
        pairs: dict[str, tuple[Callable[..., object], Callable[..., object], tuple[object, ...]]] = {
            "rms_norm": (norm.rms_norm, norm_reference.rms_norm, (x, weight, 1e-6)),
            "add_rms_norm": (norm.add_rms_norm, norm_reference.add_rms_norm, (x, residual, weight, 1e-6)),
            "silu_and_mul": (gate.activate, gate_reference.activate, (gate_up, "silu", True)),
            "rope_write_kv": (rope.rope_write_kv, rope_reference.rope_write_kv, turn),
        }
        for name, (mine, theirs, arguments) in pairs.items():
            runs: dict[str, Run] = {
                "native": lambda f=mine, a=arguments: f(*a),  # type: ignore[misc]
                "torch": lambda f=theirs, a=arguments: f(*a),  # type: ignore[misc]
            }
            agree = name == "add_rms_norm" or close(runs["native"](), runs["torch"]())  # that one changes its input
            result.append(Comparison(f"{name}_{rows}", runs, agree, 0.0, 1.0))
    return result


def sampling() -> list[Comparison]:
    result = []
    logits = torch.randn(16, VOCABULARY) * 3
    keys = torch.tensor([gumbel_reference.noise_key(seed, 0) for seed in range(16)])
    none, positions = torch.full((16,), float("-inf")), torch.arange(16)
    for rows in (1, 16):
        half, some = logits[:rows].bfloat16(), slice(0, rows)
        noise_inputs = logits[some], none[some], keys[some], positions[some]
        top_k, top_p = torch.full((rows,), 50), torch.full((rows,), 0.9)
        off = torch.zeros(rows, dtype=torch.int64), torch.ones(rows)
        pairs: dict[str, tuple[Callable[..., object], Callable[..., object], tuple[object, ...], float]] = {
            "argmax": (argmax.argmax, argmax_reference.argmax, (half,), 0.0),
            "gumbel_argmax": (
                gumbel.gumbel_argmax,
                gumbel_reference.gumbel_argmax,
                noise_inputs,
                1000.0 if rows > 1 else 0,
            ),
            "top_k": (*_thresholds(), (logits[some], top_k, off[1], None), 300.0 * rows / 2 if rows > 1 else 300.0),
            "top_p": (*_thresholds(), (logits[some], off[0], top_p, None), 300.0 * rows / 2 if rows > 1 else 300.0),
        }
        for name, (mine, theirs, arguments, target) in pairs.items():
            runs: dict[str, Run] = {
                "native": lambda f=mine, a=arguments: f(*a),  # type: ignore[misc]
                "torch": lambda f=theirs, a=arguments: f(*a),  # type: ignore[misc]
            }
            agree = close(runs["native"](), runs["torch"](), exact=name != "top_p")
            result.append(Comparison(f"{name}_{rows}", runs, agree, target, 1.0))
    return result


def _thresholds() -> tuple[Callable[..., object], Callable[..., object]]:
    return filters.top_k_top_p_thresholds, filters_reference.top_k_top_p_thresholds


def close(actual: object, expected: object, exact: bool = False) -> bool:
    assert isinstance(actual, Tensor)
    assert isinstance(expected, Tensor)
    if exact:
        return torch.equal(actual, expected)
    return torch.allclose(actual.float(), expected.float(), rtol=0.02, atol=0.02)


if __name__ == "__main__":
    sys.exit(main())
