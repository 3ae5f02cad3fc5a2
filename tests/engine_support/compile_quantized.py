"""Compiles products with quantised weights for GPUs that need not be there, and prints what each kernel needs, as JSON
lines. A program of its own, because kernels defined under ``TRITON_INTERPRET=1`` cannot be compiled."""

from __future__ import annotations

import sys

import torch
from engine_support.affine_weights import random_float8, random_weight
from engine_support.compile_lora import compile_instead
from engine_support.compile_operators import SHARED_MEMORY, TARGETS, TYPES
from triton.runtime.jit import JITFunction

from blade_llm.kernels.linear.gpu import forms, int8, pack
from blade_llm.kernels.linear.gpu.rounded import RoundedLinear

TYPES |= {torch.float8_e4m3fn: "fp8e4nv"}
PROCESSORS = 132


def main(target: str, *names: str) -> None:
    """``names``: of layers; all by default."""
    forms.shared_memory = lambda device: SHARED_MEMORY[target]  # type: ignore[assignment]
    forms.processors = lambda device: PROCESSORS  # type: ignore[assignment]
    int8._MULTIPLE = 1 << 20  # a CPU's integer product takes long
    bias = torch.zeros(1024)

    def multiply(layer: object, name: str, inputs: int, *rows: int, dtype: torch.dtype = torch.bfloat16) -> None:
        assert callable(layer)
        for count in rows if not names or name in names else ():
            JITFunction.run = compile_instead(TARGETS[target], f"{name} {count}")
            layer(torch.zeros(count, inputs, dtype=dtype))

    weight = random_weight(1024, 2048, group_size=128, ordered=True)
    multiply(pack(weight, bias, torch.bfloat16, deterministic=False), "w4", 2048, 1, 32, 64, 65)
    multiply(pack(weight, bias, torch.float16, deterministic=True), "w4 fp16", 2048, 1, dtype=torch.float16)
    odd = random_weight(17001, 500, group_size=500, zeros=False)
    multiply(pack(odd, None, torch.bfloat16, deterministic=False), "w4 odd", 500, 1, 65)
    weight = random_weight(1024, 2048, bits=8, group_size=2048, zeros=False)
    multiply(pack(weight, None, torch.bfloat16, deterministic=False), "w8", 2048, 1, 65)
    multiply(RoundedLinear(weight, bias, torch.bfloat16, input_scale=0.5), "w8a8", 2048, 1, 64)
    values = random_float8(1024, 2048, (128, 128))
    multiply(pack(values, bias, torch.bfloat16, deterministic=False), "e4m3", 2048, 1, 65)
    if target == "hopper":
        multiply(RoundedLinear(values, bias, torch.bfloat16, group_size=128), "fp8", 2048, 1, 64, 65)
        wide = random_float8(17001, 500, (17001, 500))
        multiply(RoundedLinear(wide, None, torch.bfloat16), "fp8 odd", 500, 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
