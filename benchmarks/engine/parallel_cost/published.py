"""What others measured, and what the model gives for the same: of single all-reduces, and of vLLM.

The load of such a measurement is only known roughly, so ``batch`` and ``context`` are ours where its source has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.engine.parallel_cost.collectives import nccl_all_reduce, own_all_reduce
from benchmarks.engine.parallel_cost.hardware import A100_40, B200, H100, Network
from benchmarks.engine.parallel_cost.step import Setting, decode, prefill
from blade_llm.parallel.layout import RankLayout

MIB: Final = 1 << 20


@dataclass(frozen=True)
class Point:
    """One published figure."""

    what: str
    source: str
    published: float
    unit: str
    model: Callable[[], float]
    """The same by the model."""


def _all_reduce(mib: float, own: float, nccl: float) -> list[Point]:
    source = "https://github.com/vllm-project/vllm/pull/24111"
    size = mib * MIB
    return [
        Point(f"{mib} MiB, 6 H100, one- or two-shot", source, own, "us", lambda: own_all_reduce(size, 6, H100) * 1e6),
        Point(f"{mib} MiB, 6 H100, NCCL", source, nccl, "us", lambda: nccl_all_reduce(size, 6, H100, Network()) * 1e6),
    ]


ALL_REDUCES: Final = [
    *_all_reduce(0.5, 13, 23),
    *_all_reduce(1.0, 17, 25),
    *_all_reduce(1.5, 20, 32),
    *_all_reduce(2.0, 26, 43),
    *_all_reduce(3.0, 29, 47),
    *_all_reduce(4.0, 37, 53),
]

_B200_TP4: Final = Setting("Llama-3.1-70B", RankLayout(4), B200, own_kernels=True)
_A100_TP4_PP2: Final = Setting(
    "Llama-3.1-70B", RankLayout(4, 2, 2), A100_40, Network(nic=25e9), own_kernels=True
)  # HDR InfiniBand
_FP8_TP8: Final = Setting("Llama-3.1-405B", RankLayout(8), H100, weight_bytes=1.0, own_kernels=True)
_SYMMETRIC: Final = "https://github.com/vllm-project/vllm/pull/20759"
_GIST: Final = "https://gist.github.com/surajssd/c8bbcb244b210a3607ad952a7bdda759"
_LAMBDA: Final = "https://github.com/LambdaLabsML/vllm-benchmark/blob/main/benchmark_v0.md"
_LLAMA31: Final = "https://blog.vllm.ai/2024/07/23/llama31.html"


def _requests_per_second(setting: Setting, tokens_in: int, tokens_out: int, batch: int) -> float:
    """Of a server that always has ``batch`` requests: each takes its prefill and its part of the decodes."""
    steps = decode(setting, batch, tokens_in + tokens_out // 2)
    return 1 / (prefill(setting, tokens_in).ttft + tokens_out * steps.tpot / batch)


VLLM: Final = [
    Point(
        "70B bf16, 4 B200, tp 4, 1 request/s: TPOT (model: 2 requests of 600 tokens)",
        _SYMMETRIC,
        12.88,
        "ms",
        lambda: decode(_B200_TP4, 2, 600).tpot * 1e3,
    ),
    Point("the same, TTFT (model: 550 tokens)", _SYMMETRIC, 45.0, "ms", lambda: prefill(_B200_TP4, 550).ttft * 1e3),
    Point(
        "70B bf16, 2 x 4 A100-40GB, tp 4 x pp 2, 1 request/s: TPOT (model: 8 requests of 300 tokens)",
        _GIST,
        43.7,
        "ms",
        lambda: decode(_A100_TP4_PP2, 8, 300).tpot * 1e3,
    ),
    Point("the same, TTFT (model: 210 tokens)", _GIST, 110.4, "ms", lambda: prefill(_A100_TP4_PP2, 210).ttft * 1e3),
    Point(
        "405B FP8, 8 H100, tp 8, at most 256 requests: TPOT (model: 256 requests of 512 tokens)",
        _LAMBDA,
        112.2,
        "ms",
        lambda: decode(_FP8_TP8, 256, 512).tpot * 1e3,
    ),
    Point(
        "405B FP8, 8 H100, tp 8, 1,024 tokens in, 128 out (model: 64 requests)",
        _LLAMA31,
        2.82,
        "requests/s",
        lambda: _requests_per_second(_FP8_TP8, 1024, 128, 64),
    ),
]
