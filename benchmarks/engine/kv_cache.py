"""What a quantised KV cache holds and how fast decodes over it are, beside bf16:
``python -m benchmarks.engine.kv_cache``.

The model has some layers of Qwen2.5-0.5B's shape and random weights, which all forms share; the caches of all forms
hold the same random keys and values, and the forms take turns. A step is the forward pass of one new token of each
sequence, the write of its keys and values included; the fastest turn of each form counts. A form whose hidden states
are not those of bf16, but for what its precision takes, fails.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.figures import QUICK, Figure, report
from blade_llm.cache.sizing import BLOCK_SIZE, plan_blocks
from blade_llm.kernels import native
from blade_llm.kernels.paged_attention import RaggedBatch
from blade_llm.kv_quant import KVCacheQuant
from blade_llm.models.config import ModelConfig, load_model_config
from blade_llm.models.model import Model
from blade_llm.runner.forward_pass import ForwardPass
from blade_llm.runner.kv_cache import allocate_kv_cache, rows_of
from blade_llm.runner.kv_quant import with_kv_quant
from blade_llm.runner.tables import SlotTables
from blade_llm.weights.loader import load_model

LAYERS, LONGEST = 4, 8192
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
    "num_hidden_layers": LAYERS, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 1024,
    "max_position_embeddings": LONGEST, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "rope_theta": 1e6,
    "eos_token_id": 0, "torch_dtype": "bfloat16", "hidden_act": "silu",
}  # fmt: skip
FORMS: dict[KVCacheQuant, float] = {
    "no_quant": 1e-6, "int8": 0.05, "fp8_e4m3": 0.15, "int4": 0.6, "int4_affine": 0.6,
    "mix_i8i4": 0.5, "mix_f843i4": 0.5, "mix_i4i4": 0.6,
}  # fmt: skip
"""Each with how far its hidden states may be from those of bf16, as a share of their length."""
SHAPES = ((4, 512), (4, LONGEST))
"""Sequences and the tokens of each."""
TURNS = 4 if QUICK else 12
CPU = torch.device("cpu")


def main() -> int:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        config = load_model_config(Path(folder))
        model = load_model(
            Path(folder), config, load_format="dummy", max_positions=LONGEST, device=CPU, dtype=torch.bfloat16,
            quant="none", deterministic=False, packed_cache=None, wrap=None,
        )  # fmt: skip
    configs = {form: with_kv_quant(config, form) for form in FORMS}
    held = {form: plan_blocks(own, "bfloat16", kv_cache_bytes=1 << 30).tokens for form, own in configs.items()}
    figures: list[Figure] = []
    for form in list(FORMS)[1:]:
        target = (">=", 1.9) if form == "int8" else ()
        figures.append(Figure(f"kv_cache_tokens_{form}", held[form] / held["no_quant"], "x", *target))
    with torch.inference_mode():
        for sequences, length in SHAPES:
            seconds = measure(model, configs, sequences, length)
            if seconds is None:
                return 1
            least = 0.95 if length < LONGEST else 1.1
            for form in list(FORMS)[1:]:
                target = (">=", least) if form == "int8" else ()
                name = f"kv_cache_decode_{form}_{sequences}x{length}"
                figures.append(Figure(name, seconds["no_quant"] / seconds[form], "x", *target))
            figures.append(Figure(f"kv_cache_step_{sequences}x{length}", seconds["no_quant"] * 1e3, "ms"))
    return report("kv_cache", figures, isa=native.isa(), threads=str(torch.get_num_threads()))


def measure(
    model: Model, configs: dict[KVCacheQuant, ModelConfig], sequences: int, length: int
) -> dict[KVCacheQuant, float] | None:
    """Seconds of a step by form; None where one is wrong."""
    blocks = sequences * -(-length // BLOCK_SIZE)
    tables = SlotTables(sequences, LONGEST, -(-LONGEST // BLOCK_SIZE), blocks, CPU)
    each = blocks // sequences
    tables.block_table[:sequences, :each] = torch.randperm(blocks).int().view(sequences, each)
    tables.token_ids[:sequences, :length] = torch.randint(1, 1000, (sequences, length)).int()
    batch = RaggedBatch.of(torch.arange(sequences), [1] * sequences, [length] * sequences)
    starts = torch.full((sequences,), length - 1)
    kv = configs["no_quant"].kv
    states = torch.randn(2, blocks + 1, BLOCK_SIZE, kv.num_heads, kv.head_dim).bfloat16()
    passes = {}
    for form, config in configs.items():
        rows = rows_of(config.kv, torch.bfloat16)
        cache = allocate_kv_cache(config.kv, blocks, BLOCK_SIZE, CPU, torch.bfloat16)
        stored = states if rows is None else (rows.quantize(states[0]), rows.values.quantize(states[1]))
        for keys, values in cache:
            keys.copy_(stored[0]), values.copy_(stored[1])
        passes[form] = ForwardPass(config, cache, tables, False, False, kv_rows=rows)
    best: dict[KVCacheQuant, float] = dict.fromkeys(configs, float("inf"))
    exact = passes["no_quant"](model, batch, starts, sequences).float()
    for turn in range(TURNS):
        for form, forward in passes.items():
            begin = time.perf_counter()
            hidden = forward(model, batch, starts, sequences)
            best[form] = min(best[form], time.perf_counter() - begin)
            away = float((hidden.float() - exact).norm() / exact.norm())
            if away > FORMS[form]:
                print(f"{form}, {sequences} sequences of {length}: {away:.3f} away from bf16", file=sys.stderr)
                return None
            if not turn:
                print(f"{form} {sequences}x{length}: {away:.4f} away from bf16", flush=True)
    return best


if __name__ == "__main__":
    sys.exit(main())
