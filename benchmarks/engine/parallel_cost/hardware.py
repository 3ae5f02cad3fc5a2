"""Rates of GPUs and of what is between them, each with its source."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).parents[2] / "results"


@dataclass(frozen=True)
class Gpu:
    """One GPU by its data sheet."""

    name: str
    memory_bytes: float
    bandwidth: float
    """Bytes a second of its memory."""
    flops: float
    """Dense bf16 operations a second."""
    nvlink: float
    """Bytes a second to the others of its machine, in one direction."""


H100: Final = Gpu("H100", 80e9, 3.35e12, 989e12, 450e9)
"""SXM5: https://www.nvidia.com/en-us/data-center/h100/"""
H200: Final = Gpu("H200", 141e9, 4.8e12, 989e12, 450e9)
"""https://www.nvidia.com/en-us/data-center/h200/"""
B200: Final = Gpu("B200", 180e9, 7.7e12, 2250e12, 900e9)
"""Of an HGX: https://www.nvidia.com/en-us/data-center/hgx/"""
A100_40: Final = Gpu("A100-40GB", 40e9, 1.555e12, 312e12, 300e9)
"""https://www.nvidia.com/en-us/data-center/a100/"""
GPUS: Final = {gpu.name.lower(): gpu for gpu in (H100, H200, B200, A100_40)}

NVLINK_SHARE: Final = 370 / 450
"""Of NVLink's rate, what NCCL gets through (its author: https://github.com/NVIDIA/nccl-tests/issues/212)."""


@dataclass(frozen=True)
class Network:
    """What is between machines."""

    nics: int = 8
    """Of each machine; 8: one a GPU, as in a DGX."""
    nic: float = 50e9
    """Bytes a second of one, in one direction: 400 Gb/s."""
    hop: float = 14e-6
    """Seconds that a message between two GPUs takes (NCCL's value of a network's hop, protocol "Simple")."""

    @property
    def bandwidth(self) -> float:
        """Bytes a second between two machines."""
        return self.nics * self.nic


@dataclass(frozen=True)
class Measured:
    """Shares of the data sheet's rates that this engine reached on one H200, and times of this engine."""

    bandwidth_share: float
    """Of the memory's bandwidth: copies."""
    flops_share: float
    """Of the peak: prefills of 8,192 tokens."""
    layer_gap: float
    """Seconds that a layer of a decode loses between its kernels."""
    host_64: float
    """Seconds of the host for a step of 64 decodes with eight ranks."""

    @classmethod
    def read(cls, results: Path = RESULTS) -> Measured:
        """From the results that the repository keeps."""
        gpu, host = _figures(results / "gpu_engine.json"), _figures(results / "rank_host_time.json")
        step = 1 / gpu["decode_b1"]
        lost = step * (1 - gpu["decode_b1_of_roofline"])
        return cls(
            bandwidth_share=gpu["copy_bandwidth"] * 1e9 / H200.bandwidth,
            flops_share=gpu["matmul_peak"] * 1e12 / H200.flops * gpu["prefill_8192_of_peak"],
            layer_gap=lost / _MEASURED_LAYERS,
            host_64=host["rank_host_step_64_tp8"] / 1e3,
        )


_MEASURED_LAYERS: Final = 28
"""Of the model that ``gpu_engine.json`` is about, Qwen2.5-7B."""


def _figures(path: Path) -> dict[str, float]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {figure["name"]: float(figure["value"]) for figure in content["figures"]}
