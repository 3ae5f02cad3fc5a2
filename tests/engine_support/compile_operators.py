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

from blade_llm.kernels.activate.kinds import FORMULAS
from blade_llm.kernels.kv_rows import QuantizedRows
from blade_llm.kv_quant import KVQuant
from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.norm import NormSpec
from blade_llm.spec.rope import RopeSpec

TARGETS = {"hopper": GPUTarget("cuda", 90, 32), "mi300": GPUTarget("hip", "gfx942", 64)}
SHARED_MEMORY = {"hopper": 227 << 10, "mi300": 64 << 10}
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64", torch.float64: "fp64"}
TYPES |= {torch.int8: "i8", torch.uint8: "u8"}
OPERATORS = [
    "rms_norm",
    "rope_write_kv",
    "rope_write_latent",
    "activate",
    "layer_norm",
    "gumbel_argmax",
    "mark_invalid",
    "gather_inputs",
    "top_k_top_p",
    "penalties",
    "moe_routing",
    "experts",
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
        assembly = compiled.asm.get("ptx") or compiled.asm["amdgcn"]
        tensor_cores = any(word in assembly for word in ("wgmma", "mma.sync", "v_mfma"))
        kernel = {"kernel": self.__name__, "shared": compiled.metadata.shared, "tensor_cores": tensor_cores}
        print(json.dumps(kernel))

    return run


def main(target: str, *parts: str) -> None:
    """``parts``: of :data:`PARTS`; all by default."""
    JITFunction.run = compile_instead(TARGETS[target])
    for name in OPERATORS:
        module: Any = importlib.import_module(f"blade_llm.kernels.{name}")
        module.backend_of = lambda tensor: "triton"
    warm: Any = importlib.import_module("blade_llm.kernels.warm")
    for part in parts or PARTS:
        PARTS[part](warm, SHARED_MEMORY[target])


def compile_layers(warm: Any, shared_memory: int) -> None:
    k_cache = torch.zeros(2, 16, 4, 128, dtype=torch.bfloat16)
    for qk_norm in (False, True):
        warm.warm_layers(torch.bfloat16, k_cache, hidden=3584, inner=[18944], num_heads=28, qk_norm=qk_norm)


def compile_caches(warm: Any, shared_memory: int) -> None:
    """Layers that write a quantised cache."""
    for quant in (KVQuant("int8"), KVQuant("int4_affine", 4), KVQuant("fp8_e4m3")):
        rows = QuantizedRows(quant, 128, torch.bfloat16)
        cache = torch.zeros(2, 16, 4, rows.row_bytes, dtype=torch.uint8)
        warm.warm_layers(torch.bfloat16, cache, hidden=3584, inner=[18944], num_heads=28, rows=rows)


def compile_families(warm: Any, shared_memory: int) -> None:
    warm.warm_family(
        torch.bfloat16,
        torch.device("cpu"),
        hidden=3584,
        norms=("layer", "rms_unit_offset"),
        biases=True,
        activations=[(kind, gated, 4096) for kind in FORMULAS for gated in (False, True)],
    )


def compile_step(warm: Any, shared_memory: int) -> None:
    """Inputs and sampling."""
    tokens, blocks = torch.zeros(3, 4097, dtype=torch.int32), torch.zeros(3, 257, dtype=torch.int32)
    warm.warm_step(tokens, blocks, 16, torch.zeros(1, 152_064, dtype=torch.bfloat16))


def compile_linear(warm: Any, shared_memory: int) -> None:
    """Products of one and of a few rows."""
    linear: Any = importlib.import_module("blade_llm.kernels.linear")
    linear.backend_of = lambda tensor: "triton"
    importlib.import_module("blade_llm.kernels.linear.triton").shared_memory = lambda device: shared_memory
    for inputs in (3584, 18944):
        weight = torch.zeros(4608, inputs, dtype=torch.bfloat16)
        for rows, bias in ((1, None), (1, weight[:, 0].contiguous()), (16, None), (32, weight[:, 0].contiguous())):
            linear.linear(torch.zeros(rows, inputs, dtype=torch.bfloat16), weight, bias)


def compile_latent(warm: Any, shared_memory: int) -> None:
    """DeepSeek-V3's latent attention, and V2-Lite's, whose queries have no latent vector."""
    rope, norm = RopeSpec(1e4, 64, pairing="neighbours"), NormSpec(1e-6)
    for heads, rank in ((128, 1536), (16, 0)):
        spec = LatentAttentionSpec(heads, 512, 128, 64, 128, 192**-0.5, rope, norm, query_rank=rank)
        warm.warm_latent(torch.bfloat16, torch.zeros(2, 16, 1, 576, dtype=torch.bfloat16), spec)


def compile_moe(warm: Any, shared_memory: int) -> None:
    """Experts of Qwen3-30B-A3B's shape, few of them; those in int8 in one form, and a part of all alike."""
    experts: Any = importlib.import_module("blade_llm.kernels.experts")
    importlib.import_module("blade_llm.kernels.experts.triton")._shared_memory = lambda device: shared_memory
    routing: Any = importlib.import_module("blade_llm.kernels.moe_routing")
    weights = [(torch.zeros(1536, 2048).bfloat16(), torch.zeros(2048, 768).bfloat16())] * 8
    plain, limited = routing.RoutingSpec(8, 2), routing.RoutingSpec(8, 2, "sigmoid", True, 2.5, 4, 2)
    for quant in ("none", "int8", "int4"):
        packed = experts.pack(weights, quant, deterministic=quant == "int8")
        spec, bias = (plain, None) if quant == "none" else (limited, torch.zeros(8))
        warm.warm_moe(torch.zeros(1, 8, dtype=torch.bfloat16), spec, bias, packed, torch.bfloat16)
    part = importlib.import_module("blade_llm.kernels.experts.packed").Part(2, 8)
    packed = experts.pack(weights[:3], deterministic=True, part=part)
    warm.warm_moe(torch.zeros(1, 8, dtype=torch.bfloat16), plain, None, packed, torch.bfloat16)


PARTS = {
    "layers": compile_layers,
    "caches": compile_caches,
    "families": compile_families,
    "step": compile_step,
    "latent": compile_latent,
    "experts": compile_moe,
    "linear": compile_linear,
}


if __name__ == "__main__":
    main(*sys.argv[1:])
