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
from blade_llm.kernels.paged_attention.triton_combine import combine
from blade_llm.kernels.paged_attention.triton_forms import head_splits, widths_of
from blade_llm.kernels.paged_attention.triton_kernels import attend
from blade_llm.kv_quant import METHOD_NUMBERS, KVQuant

TARGETS = {"hopper": (GPUTarget("cuda", 90, 32), 227 << 10), "mi300": (GPUTarget("hip", "gfx942", 64), 64 << 10)}
POINTERS = {"out": "*bf16", "parts": "*fp32", "weights": "*fp32", "q": "*bf16", "k_cache": "*bf16", "v_cache": "*bf16"}
INDICES = {
    "block_table": "*i32", "slots": "*i64", "query_starts": "*i64", "seq_lens": "*i64", "decodes": "*i64",
    "shorts": "*i64",
}  # fmt: skip
METHODS = {
    "int8": KVQuant("int8"), "int4affine": KVQuant("int4_affine", 2), "fp8": KVQuant("fp8_e4m3"),
    "mixed": KVQuant.of("mix_i8i4"),
}  # fmt: skip
TERMS = {"slopes": "*fp32", "sinks": "*fp32", "tree": "*i64"}
SIZES = ("q_stride", "table_stride", "first_sequence", "first_token", "sequences", "segments", "programs", "window")


def caches_of(kv_heads: int, head_dim: int, v_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values; of one key head of 576 dimensions the values are a part."""
    k_cache = torch.empty(2, 16, kv_heads, head_dim, dtype=torch.bfloat16)
    return k_cache, k_cache[..., :v_dim] if head_dim == 576 else torch.empty(2, 16, kv_heads, v_dim).bfloat16()


def compile_for(name: str, form: str) -> dict[str, object]:
    """``form``: prefill, decode (split along the context) or combine; with ``captured_`` before it, as a graph of mixed
    steps has it; with ``options_``, all that scores can have; with ``wide_``, keys of 192 and values of 128 dimensions;
    with ``latent_``, latent vectors of 512 and 64 that 128 heads share; with ``tree_``, tokens that branch; with
    ``short_``, sequences of few new tokens, whose contexts are divided; with ``int8_``, ``int4affine_``, ``fp8_``
    or ``mixed_``, over a quantised cache."""
    whole = form
    names = ("captured", "options", "wide", "latent", "tree", "short", *METHODS)
    prefixes = {prefix: f"{prefix}_" in form for prefix in names}
    captured, options = prefixes["captured"], prefixes["options"]
    form = form.rsplit("_", 1)[-1]
    heads, kv_heads, head_dim, v_dim = 28, 4, 128, 128
    if prefixes["wide"]:
        heads, kv_heads, head_dim = 16, 16, 192
    if prefixes["latent"]:
        heads, kv_heads, head_dim, v_dim = 128, 1, 576, 512
    target, shared_memory = TARGETS[name]
    k_cache, v_cache = caches_of(kv_heads, head_dim, v_dim)
    kind = "decode" if form != "prefill" else "small" if prefixes["short"] else "prefill"
    widths, splits = widths_of(k_cache, v_cache), head_splits(head_dim, heads // kv_heads)
    config = kernels.config_of(head_dim, heads // kv_heads, 2, shared_memory, kind, widths.v_loaded)
    constants: dict[str, object] = {
        "HEADS": heads,
        "V_DIM": widths.v_dim,
        "V_PADDED": widths.v_padded,
        "TILE": config.tile,
        "SEGMENT_TILES": 0,
        "LOCAL": 8192 if options else 0,
        "SINKS": options,
        "CAPTURED": captured,
        "WINDOWED": options,
    }
    method = next((each for each in METHODS if prefixes[each]), None)
    signature = {**POINTERS, **INDICES, **TERMS, **dict.fromkeys(SIZES, "i32"), "scale": "fp32"}
    kernel = attend
    if form == "combine":
        kernel = combine
        constants["CHUNK"] = 64 if widths.v_padded <= 128 else 16
        signature = {
            k: signature[k]
            for k in (
                "out",
                "parts",
                "weights",
                "seq_lens",
                "query_starts",
                "decodes",
                "shorts",
                "sinks",
                "first_token",
                "segments",
                "programs",
                "window",
            )
        }
        constants["SHORT"] = prefixes["short"]
    else:
        decode = form == "decode"
        constants |= {"KV_HEADS": kv_heads * splits, "HEAD_SPLITS": splits, "HEAD_DIM": head_dim}
        constants |= {"PADDED_DIM": widths.padded, "REST_DIM": widths.rest, "SHARED_KV": widths.shared}
        constants |= {"V_SLOT_STRIDE": v_cache.stride(1), "V_HEAD_STRIDE": v_cache.stride(2), "CAUSAL": True}
        constants |= {"K_HEAD_STRIDE": k_cache.stride(2), "METHOD": 0, "V_METHOD": 0, "GROUP_SIZE": 0}
        if method is not None:
            quant = METHODS[method]
            row, v_row = quant.row_bytes(head_dim), quant.values.row_bytes(head_dim)
            constants |= {"METHOD": METHOD_NUMBERS[quant.method], "GROUP_SIZE": head_dim // quant.groups}
            constants |= {"V_METHOD": METHOD_NUMBERS[quant.values.method], "K_HEAD_STRIDE": row}
            constants |= {"V_HEAD_STRIDE": v_row, "V_SLOT_STRIDE": v_row * kv_heads}
            signature |= {"k_cache": "*u8", "v_cache": "*u8"}
        constants |= {"SOFTCAP": 50.0 if options else 0.0, "ALIBI": options, "TREE": prefixes["tree"]}
        constants |= {"BLOCK_SIZE": 16, "BLOCK_M": config.rows, "DECODE": decode}
        short = prefixes["short"]
        constants |= {"SHORT": short, "SHORTS": captured and short, "SPLIT": decode or short}
        del signature["first_token"]
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
        "form": whole,
        "shared": compiled.metadata.shared,
        "limit": shared_memory,
        "tensor_cores": any(word in assembly for word in ("wgmma", "mma.sync", "v_mfma")),
        "asynchronous": "cp.async" in assembly,
    }


if __name__ == "__main__":
    assert not torch.cuda.is_initialized()
    for form in sys.argv[2:]:
        print(json.dumps(compile_for(sys.argv[1], form)))
