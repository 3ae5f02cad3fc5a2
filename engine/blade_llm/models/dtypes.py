"""Names of compute types, and which one is used when none is requested.

Without torch, so that the server, the runner and ``blade_llm_check`` choose the same one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, cast

DTypeName = Literal["float32", "float16", "bfloat16"]
DTYPE_BYTES: Final[dict[str, int]] = {"float32": 4, "float16": 2, "bfloat16": 2}
DTYPE_ALIASES: Final[dict[str, str]] = {"half": "float16", "float": "float32"}
BF16_CPU_FLAGS: Final = frozenset({"amx_bf16", "avx512_bf16", "avx2"})
"""``/proc/cpuinfo`` flags of CPUs that are faster in bf16: those that multiply it, and those whose vector instructions
make fp32 of it as fast as memory brings it (``kernels/linear``)."""


def parse_dtype(name: str) -> DTypeName:
    """The type a name from a config or ``--dtype`` means; ``half`` and ``float`` are aliases. Raises ``ValueError``."""
    name = DTYPE_ALIASES.get(name, name)
    if name not in DTYPE_BYTES:
        raise ValueError(f"dtype {name!r} is not supported; use one of {', '.join((*DTYPE_BYTES, *DTYPE_ALIASES))}")
    return cast(DTypeName, name)


def resolve_dtype(name: str, checkpoint: DTypeName, *, on_gpu: bool, quantized: bool = False) -> DTypeName:
    """The compute type for ``--dtype name``, which may be ``auto``.

    ``auto`` is the checkpoint's own type on a GPU; on CPU it is bf16 where the checkpoint is 16-bit and the CPU
    is fast in bf16, else fp32. ``quantized`` weights are multiplied in bf16 there, whatever the checkpoint has.
    """
    if name != "auto":
        return parse_dtype(name)
    if on_gpu:
        return checkpoint
    return "bfloat16" if (quantized or checkpoint != "float32") and cpu_computes_bf16() else "float32"


def cpu_computes_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this CPU is fast in bf16: AMX, AVX512-BF16 or AVX2."""
    try:
        text = cpuinfo.read_text(encoding="utf-8")
    except OSError:
        return False
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return not BF16_CPU_FLAGS.isdisjoint(value.split())
    return False
