"""Compiles what :mod:`blade_llm.kernels.warm` compiles, for GPUs that need not be there, and prints what each kernel
needs, as JSON lines. A program of its own, because kernels defined under ``TRITON_INTERPRET=1`` cannot be compiled."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TARGETS = {"hopper": GPUTarget("cuda", 90, 32), "mi300": GPUTarget("hip", "gfx942", 64)}
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64", torch.float64: "fp64"}
OPERATORS = [
    "rms_norm",
    "rope_write_kv",
    "silu_and_mul",
    "gumbel_argmax",
    "mark_invalid",
    "gather_inputs",
    "top_k_top_p",
    "penalties",
    "warm",
]


def compile_instead(target: GPUTarget) -> Any:
    """What takes the place of a kernel's launch."""

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        values = {**dict(zip([parameter.name for parameter in self.params], args, strict=False)), **kwargs}
        signature, constants, aligned = {}, {}, {}
        for index, parameter in enumerate(self.params):
            value = values.pop(parameter.name)
            if parameter.is_constexpr:
                signature[parameter.name], constants[(index,)] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[parameter.name] = "*" + TYPES[value.dtype]
                if not parameter.do_not_specialize_on_alignment:
                    aligned[(index,)] = [["tt.divisibility", 16]]
            else:
                signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
        source = ASTSource(fn=self, signature=signature, constexprs=constants, attrs=aligned)
        compiled = triton.compile(source, target=target, options=values)
        print(json.dumps({"kernel": self.__name__, "shared": compiled.metadata.shared}))

    return run


def main(target: str) -> None:
    JITFunction.run = compile_instead(TARGETS[target])
    for name in OPERATORS:
        module: Any = importlib.import_module(f"blade_llm.kernels.{name}")
        module.backend_of = lambda tensor: "triton"
    warm: Any = importlib.import_module("blade_llm.kernels.warm")
    k_cache = torch.zeros(2, 16, 4, 128, dtype=torch.bfloat16)
    for qk_norm in (False, True):
        warm.warm_layers(torch.bfloat16, k_cache, hidden=3584, inner=[18944], num_heads=28, qk_norm=qk_norm)
    tokens, blocks = torch.zeros(3, 4097, dtype=torch.int32), torch.zeros(3, 257, dtype=torch.int32)
    warm.warm_step(tokens, blocks, 16, torch.zeros(1, 152_064, dtype=torch.bfloat16))


if __name__ == "__main__":
    main(sys.argv[1])
