"""Which device and which number type a model computes with."""

from __future__ import annotations

from typing import Final, cast

import torch

from blade_llm.models.dtypes import DTypeName

TORCH_DTYPES: Final[dict[str, torch.dtype]] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def choose_device() -> torch.device:
    """The GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_dtype(requested: str, checkpoint: DTypeName, device: torch.device, native_bf16: bool) -> DTypeName:
    """``requested`` unless it is ``auto``; then the checkpoint's type on GPU, and on CPU bf16 for a 16-bit checkpoint
    where the CPU multiplies bf16 itself, else fp32 (emulated 16-bit arithmetic is slower)."""
    if requested != "auto":
        return cast(DTypeName, requested)
    if device.type != "cpu":
        return checkpoint
    return "bfloat16" if native_bf16 and checkpoint != "float32" else "float32"


def cpu_has_native_bf16() -> bool:
    """Whether this CPU has AMX or AVX512-BF16."""
    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())
