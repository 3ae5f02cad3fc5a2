"""GPUs by name: memory, bandwidth and arithmetic, for estimates about machines that are not at hand.

Memory is about what the driver reports, bandwidth and dense bf16 (T4 and V100: fp16) arithmetic are the makers' data
sheets'. All are estimates; the engine measures memory when it starts. There are no prices here: they differ by
provider and week.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from blade_llm.check.rank_memory import Gpu

CONTEXT_BYTES: Final = 512 << 20
"""Upper estimate of what a CUDA context takes."""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A kind of GPU."""

    name: str
    memory_gib: float
    bandwidth: float
    """Bytes of memory that it reads a second."""
    flops: float
    """Dense 16-bit floating-point operations a second."""

    @property
    def memory(self) -> Gpu:
        """Of one that nobody else uses."""
        total = int(self.memory_gib * 2**30)
        return Gpu(free=total - CONTEXT_BYTES, total=total)


def _gpu(name: str, memory_gib: float, gigabytes: float, teraflops: float) -> GpuModel:
    return GpuModel(name, memory_gib, gigabytes * 1e9, teraflops * 1e12)


_MODELS: Final = (
    _gpu("T4", 14.6, 320, 65),
    _gpu("V100", 31.7, 900, 125),
    _gpu("A10", 22.1, 600, 125),
    _gpu("L4", 22.0, 300, 121),
    _gpu("L20", 44.5, 864, 119),
    _gpu("L40S", 44.4, 864, 362),
    _gpu("RTX3090", 23.6, 936, 71),
    _gpu("RTX4090", 23.5, 1008, 165),
    _gpu("A100-40GB", 39.4, 1555, 312),
    _gpu("A100", 79.1, 2039, 312),
    _gpu("H20", 95.1, 4000, 148),
    _gpu("H100", 79.2, 3350, 989),
    _gpu("H200", 139.7, 4800, 989),
    _gpu("B200", 178.0, 7700, 2250),
    _gpu("MI300X", 191.5, 5300, 1307),
)
GPUS: Final = {gpu.name.lower(): gpu for gpu in _MODELS}
"""By name in small letters."""
NAMES: Final = tuple(gpu.name for gpu in _MODELS)


def find_gpu(name: str) -> GpuModel:
    """The GPU called ``name``, in capitals or not. Raises ``ValueError`` for one that is not known."""
    try:
        return GPUS[name.lower()]
    except KeyError:
        raise ValueError(f"{name!r} is not a GPU of the table; give one of {', '.join(NAMES)}") from None
