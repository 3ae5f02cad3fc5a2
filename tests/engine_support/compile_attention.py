"""Compiles the attention kernels for GPUs that need not be there, and prints what each needs, as JSON lines.

A program of its own, because kernels defined under ``TRITON_INTERPRET=1`` cannot be compiled.
"""

from __future__ import annotations

import json
import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from blade_llm.kernels.paged_attention import triton as kernels
from blade_llm.kernels.paged_attention.triton_kernels import attend, combine

TARGETS = {"hopper": (GPUTarget("cuda", 90, 32), 227 << 10), "mi300": (GPUTarget("hip", "gfx942", 64), 64 << 10)}
POINTERS = {"out": "*bf16", "parts": "*fp32", "weights": "*fp32", "q": "*bf16", "k_cache": "*bf16", "v_cache": "*bf16"}
INDICES = {"block_table": "*i32", "slots": "*i64", "query_starts": "*i64", "seq_lens": "*i64", "decodes": "*i64"}
SIZES = ("q_stride", "table_stride", "first_sequence", "sequences", "segments", "programs", "window")


def compile_for(name: str, form: str, heads: int = 28, kv_heads: int = 4, head_dim: int = 128) -> dict[str, object]:
    """``form``: prefill, decode (split along the context) or combine; with ``captured_`` before it, as a graph of mixed
    steps has it."""
    captured = form.startswith("captured_")
    form = form.removeprefix("captured_")
    target, shared_memory = TARGETS[name]
    config = kernels.config_of(
        head_dim, heads // kv_heads, 2, shared_memory, "prefill" if form == "prefill" else "decode"
    )
    constants: dict[str, object] = {
        "HEADS": heads,
        "HEAD_DIM": head_dim,
        "PADDED_DIM": triton.next_power_of_2(head_dim),
        "TILE": config.tile,
        "SEGMENT_TILES": 0,
        "CAPTURED": captured,
        "WINDOWED": False,
    }
    signature = {**POINTERS, **INDICES, **dict.fromkeys(SIZES, "i32"), "scale": "fp32"}
    kernel = attend
    if form == "combine":
        kernel = combine
        constants["CHUNK"] = 16
        signature = {
            k: signature[k]
            for k in ("out", "parts", "weights", "seq_lens", "decodes", "segments", "programs", "window")
        }
    else:
        decode = form == "decode"
        constants |= {"KV_HEADS": kv_heads, "BLOCK_SIZE": 16, "BLOCK_M": config.rows, "DECODE": decode, "SPLIT": decode}
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, key in enumerate(signature) if key in POINTERS or key == "q_stride"
    }
    source = ASTSource(kernel, signature | dict.fromkeys(constants, "constexpr"), constants, aligned)
    compiled = triton.compile(
        source,
        target=target,
        options={"num_warps": config.warps, "num_stages": config.stages, "enable_fp_fusion": True},
    )
    assembly = compiled.asm.get("ptx") or compiled.asm["amdgcn"]
    return {
        "target": name,
        "form": f"captured_{form}" if captured else form,
        "shared": compiled.metadata.shared,
        "limit": shared_memory,
        "tensor_cores": any(word in assembly for word in ("wgmma", "mma.sync", "v_mfma")),
        "asynchronous": "cp.async" in assembly,
    }


if __name__ == "__main__":
    assert not torch.cuda.is_initialized()
    for form in sys.argv[2:]:
        print(json.dumps(compile_for(sys.argv[1], form)))
