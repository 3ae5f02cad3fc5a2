# ruff: noqa: C408
"""One row for each family, chosen so that each of its odd features is active, and random models of them made by
transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from engine_support.kept_models import KeptModels
from engine_support.rewritten_families import (
    as_baichuan,
    as_baichuan_alibi,
    as_chatglm,
    as_mimo,
    as_qwen,
    with_alibi,
    with_correction,
    with_unit_rows,
)
from engine_support.tiny_models import SHAPE, load_reference
from engine_support.vision_rows import VISION_ROWS
from examples.families.weights import randomize
from safetensors.torch import load_file, save_file

LONG = {"original_max_position_embeddings": 48}
GPT2_SHAPE = {"vocab_size": 199, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 1024}
FALCON_SHAPE = {name: SHAPE[name] for name in SHAPE if name not in ("intermediate_size", "num_key_value_heads")}
MODULES: dict[str, Any] = {"runner": {"model_impl": "transformers"}, "fused": False}
"""Of a row that transformers' own modules compute."""
GEMMA2_CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 5e4, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
}
GEMMA3 = {"query_pre_attn_scalar": 64, "rope_parameters": GEMMA3_ROPE}
QUARTER = {"partial_rotary_factor": 0.25, "num_attention_heads": 4}  # 4 of 16 dimensions
PHI3_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + i / 10 for i in range(4)],
    "long_factor": [2.0 + i for i in range(4)],
}

DEEPSEEK: dict[str, Any] = {
    "num_key_value_heads": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 48,
}
DEEPSEEK_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "mscale_all_dim": 0.707, **LONG}


@dataclass(frozen=True)
class Row:
    """A family, or one way of configuring it."""

    family: str
    """transformers' name of the classes: ``FAMILYConfig`` and ``FAMILYForCausalLM``."""
    shows: str
    """The features that the row has on, for the table in the docs."""
    fields: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    """The class, where it is not ``FAMILYForCausalLM``."""
    shape: dict[str, Any] = field(default_factory=lambda: dict(SHAPE))
    runner: dict[str, Any] = field(default_factory=dict)
    """Fields of the engine's configuration."""
    fused: bool = True
    """On CPU in bf16 all layers are one native call."""
    becomes: tuple[str, Callable[[Path], None]] | None = None
    """An architecture that transformers does not have, and what makes one of the saved folder."""
    before: Callable[[Any], None] | None = None
    """Changes the random model before it is saved."""
    reference: Callable[[Any], None] | None = None
    """Changes transformers' model, where it computes almost the same."""

    @property
    def through(self) -> str:
        """Whose layers compute it."""
        return str(self.runner.get("model_impl", "blade"))

    @property
    def model_class(self) -> str:
        """transformers' class."""
        return self.model or f"{self.family}ForCausalLM"

    @property
    def architecture(self) -> str:
        """As in ``config.json``."""
        return self.becomes[0] if self.becomes else self.model_class


def as_internlm2(folder: Path) -> None:
    """InternLM2's names, and its one matrix: for each key head its queries, itself and its value.

    Its own code reads that matrix as ``(h gs d)`` with ``gs = queries per key head + 2``.
    """
    config = json.loads((folder / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config["hidden_size"] // heads
    theirs = load_file(folder / "model.safetensors")
    ours = {
        "model.tok_embeddings.weight": theirs["model.embed_tokens.weight"],
        "model.norm.weight": theirs["model.norm.weight"],
        "output.weight": theirs["lm_head.weight"],
    }
    names = {
        "attention_norm": "input_layernorm",
        "attention.wo": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w3": "mlp.up_proj",
        "feed_forward.w2": "mlp.down_proj",
    }
    for index in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{index}"
        for new, old in names.items():
            for kind in ("weight", "bias"):
                if f"{prefix}.{old}.{kind}" in theirs:
                    ours[f"{prefix}.{new}.{kind}"] = theirs[f"{prefix}.{old}.{kind}"]
        for kind in ("weight", "bias"):
            q, k, v = (theirs[f"{prefix}.self_attn.{name}_proj.{kind}"] for name in "qkv")
            groups = [
                part
                for head in range(kv_heads)
                for part in (
                    q.view(kv_heads, heads // kv_heads * dim, -1)[head],
                    k.view(kv_heads, dim, -1)[head],
                    v.view(kv_heads, dim, -1)[head],
                )
            ]
            ours[f"{prefix}.attention.wqkv.{kind}"] = torch.cat(groups).view(-1, *q.shape[1:]).contiguous()
    save_file(ours, folder / "model.safetensors")
    config |= {"architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2", "bias": True}
    del config["attention_bias"]
    (folder / "config.json").write_text(json.dumps(config))


def with_sdpa(model: Any) -> None:
    """Its eager attention adds ALiBi twice, to the mask and to the scores."""
    model.config._attn_implementation = "sdpa"  # which its layers read at each call


ROWS: dict[str, Row] = {
    "llama": Row("Llama", "grouped-query attention, heads of their own size", {"head_dim": 16}),
    "llama-biases": Row("Llama", "biases, tied", dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "llama-linear": Row(
        "Llama", "rope linear", {"rope_parameters": dict(rope_type="linear", rope_theta=1e4, factor=3.0)}
    ),
    "llama-dynamic": Row(
        "Llama", "rope dynamic", {"rope_parameters": dict(rope_type="dynamic", rope_theta=1e4, factor=3.0)}
    ),
    "llama-yarn": Row(
        "Llama", "rope yarn", {"rope_parameters": dict(rope_type="yarn", rope_theta=1e4, factor=8.0, **LONG)}
    ),
    "llama-llama3": Row(
        "Llama",
        "rope llama3",
        {
            "rope_parameters": dict(
                rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **LONG
            )
        },
    ),
    "qwen2": Row("Qwen2", "biases of queries, keys and values"),
    "qwen2-windows": Row(
        "Qwen2", "windows from a layer on", dict(use_sliding_window=True, sliding_window=24, max_window_layers=1)
    ),
    "mimo": Row("Qwen2", "Qwen2's layers", becomes=("MiMoForCausalLM", as_mimo)),
    "qwen3": Row("Qwen3", "normalised heads", {"head_dim": 16}),
    "qwen3-windows": Row(
        "Qwen3",
        "normalised heads, windows, biases",
        dict(head_dim=16, attention_bias=True, use_sliding_window=True, sliding_window=24, max_window_layers=1),
    ),
    "mistral": Row("Mistral", "sliding window", {"sliding_window": 24}),
    "mistral-no-window": Row("Mistral", "no window", {"sliding_window": None}),
    "mixtral": Row("Mixtral", "experts, sliding window", dict(num_local_experts=8, sliding_window=24)),
    "qwen2-moe": Row(
        "Qwen2Moe",
        "experts and a shared one behind a gate, windows",
        dict(
            num_experts=12, num_experts_per_tok=4, moe_intermediate_size=48, shared_expert_intermediate_size=80,
            use_sliding_window=True, sliding_window=24, max_window_layers=2,
        ),
        fused=False,
    ),
    "qwen2-moe-some": Row(
        "Qwen2Moe",
        "some layers without experts, normalised weights, no biases",
        dict(
            num_experts=6, num_experts_per_tok=2, moe_intermediate_size=48, shared_expert_intermediate_size=80,
            num_hidden_layers=5, decoder_sparse_step=2, mlp_only_layers=[3], norm_topk_prob=True, qkv_bias=False,
        ),
        fused=False,
    ),
    "qwen3-moe": Row(
        "Qwen3Moe",
        "experts, normalised heads",
        dict(num_experts=16, num_experts_per_tok=8, moe_intermediate_size=48, head_dim=16, norm_topk_prob=True),
    ),
    "qwen3-moe-some": Row(
        "Qwen3Moe",
        "some layers without experts, plain weights, window, biases",
        dict(
            num_experts=16, num_experts_per_tok=3, moe_intermediate_size=48, mlp_only_layers=[1], attention_bias=True,
            use_sliding_window=True, sliding_window=24,
        ),
    ),
    "deepseek-v2": Row(
        "DeepseekV2",
        "latent attention, latent queries, yarn of all dimensions, the best groups of experts and a shared one",
        dict(
            DEEPSEEK, n_shared_experts=2, first_k_dense_replace=1, topk_method="group_limited_greedy", n_group=4,
            topk_group=2, routed_scaling_factor=3.0, rope_parameters=dict(DEEPSEEK_YARN, mscale=0.9),
        ),
        fused=False,
    ),
    "deepseek-v2-lite": Row(
        "DeepseekV2",
        "latent attention, plain queries, any experts, a plain MLP in two layers",
        dict(DEEPSEEK, q_lora_rank=None, first_k_dense_replace=2),
        fused=False,
    ),
    "deepseek-v3": Row(
        "DeepseekV3",
        "latent attention, sigmoid scores with a correction bias, groups by their two best, yarn",
        dict(
            DEEPSEEK, first_k_dense_replace=1, n_group=4, topk_group=2, routed_scaling_factor=2.5, num_mtp_layers=0,
            rope_parameters=dict(DEEPSEEK_YARN, mscale=0.707),
        ),
        fused=False,
        before=with_correction,
    ),
    "deepseek-v3-halves": Row(
        "DeepseekV3",
        "latent attention with biases, halves rotate, experts of one group, plain weights, no MLP alone",
        dict(
            DEEPSEEK, first_k_dense_replace=0, n_group=1, topk_group=1, norm_topk_prob=False, num_mtp_layers=0,
            rope_interleave=False, attention_bias=True, routed_scaling_factor=1.0,
        ),
        fused=False,
        before=with_correction,
    ),
    "phi3": Row("Phi3", "fused matrices", {"pad_token_id": 0, "sliding_window": 40}),
    "phi3-long": Row(
        "Phi3",
        "longrope, long factors",
        dict(pad_token_id=0, original_max_position_embeddings=4, rope_parameters=PHI3_LONGROPE),
    ),
    "phi3-short": Row(
        "Phi3",
        "longrope, short factors, partial rotation",
        dict(
            pad_token_id=0,
            original_max_position_embeddings=512,
            rope_parameters={
                **PHI3_LONGROPE,
                "partial_rotary_factor": 0.5,
                "short_factor": [1.2, 1.7],
                "long_factor": [3.0, 4.0],
            },
        ),
        runner={"max_model_len": 512},
    ),
    "internlm2": Row(
        "Llama",
        "one matrix by key head, names of its own",
        {"attention_bias": True},
        becomes=("InternLM2ForCausalLM", as_internlm2),
    ),
    "glm": Row(
        "Glm", "neighbours rotate, in half of the dimensions", dict(head_dim=16, attention_bias=True, pad_token_id=0)
    ),
    "glm4": Row(
        "Glm4",
        "norms of what attention and MLP add",
        dict(head_dim=16, attention_bias=True, pad_token_id=0),
        fused=False,
    ),
    "granite": Row(
        "Granite",
        "scales of embeddings, attention, additions, logits",
        dict(embedding_multiplier=3.0, attention_multiplier=0.5, residual_multiplier=0.4, logits_scaling=2.0),
        fused=False,
    ),
    "phi": Row("Phi", "attention and MLP side by side behind one norm", {"partial_rotary_factor": 0.5}, fused=False),
    "gpt-neox": Row("GPTNeoX", "side by side with a norm each, partial rotation", dict(rotary_pct=0.5), fused=False),
    "gpt-j": Row(
        "GPTJ", "side by side behind one norm, neighbours rotate in half of the dimensions",
        shape=dict(GPT2_SHAPE, rotary_dim=8, bos_token_id=0, eos_token_id=1), fused=False,
    ),
    "falcon": Row("Falcon", "one key head, side by side behind one norm", shape=FALCON_SHAPE, fused=False),
    "falcon-new": Row(
        "Falcon", "key heads with their queries, side by side with a norm each, biases",
        dict(new_decoder_architecture=True, num_kv_heads=2, bias=True, ffn_hidden_size=112), shape=FALCON_SHAPE,
        fused=False,
    ),
    "falcon-2": Row(
        "Falcon", "key heads with their queries, side by side behind one norm",
        dict(new_decoder_architecture=True, num_kv_heads=4, num_ln_in_parallel_attn=1, tie_word_embeddings=False),
        shape=FALCON_SHAPE, fused=False,
    ),
    "falcon-rw": Row(
        "Falcon", "one matrix by head, ALiBi, one half after the other, biases",
        dict(multi_query=False, parallel_attn=False, alibi=True, bias=True), shape=FALCON_SHAPE, reference=with_sdpa,
    ),
    "opt": Row("OPT", "learned positions, layer norm, ReLU", dict(ffn_dim=112, pad_token_id=0, dropout=0.0)),
    "gpt2": Row(
        "GPT2", "transposed weights, GELU", {"scale_attn_by_inverse_layer_idx": True}, "GPT2LMHeadModel", GPT2_SHAPE,
        fused=False,
    ),
    "gemma": Row(
        "Gemma", "norms of 1 + weight, GELU gate, scaled embeddings", dict(head_dim=16, attention_bias=True)
    ),
    "gemma2": Row(
        "Gemma2",
        "soft caps, four norms, windows in every other layer, scale of queries",
        dict(head_dim=16, sliding_window=24, query_pre_attn_scalar=5, **GEMMA2_CAPS),
        fused=False,
    ),
    "gemma3": Row(
        "Gemma3Text",
        "two rotations, normalised heads, five layers with a window for each without",
        dict(GEMMA3, head_dim=16, sliding_window=24, num_hidden_layers=7),
        "Gemma3ForCausalLM",
        fused=False,
    ),
    "bloom": Row(
        "Bloom",
        "ALiBi of six heads, norm of embeddings, one matrix by head",
        shape=dict(vocab_size=199, hidden_size=96, n_layer=3, n_head=6, bos_token_id=0, eos_token_id=1),
    ),
    "starcoder2": Row("Starcoder2", "layer norms, no gate, biases, window", dict(sliding_window=24, norm_epsilon=1e-4)),
    "stablelm": Row("StableLm", "layer norms with a gate, a quarter rotates", dict(use_qkv_bias=True, **QUARTER)),
    "stablelm-parallel": Row(
        "StableLm", "side by side behind one norm", dict(use_parallel_residual=True, **QUARTER), fused=False
    ),
    "cohere": Row(
        "Cohere",
        "side by side behind one norm without bias, neighbours rotate, scaled logits",
        dict(logit_scale=0.3, attention_bias=True, pad_token_id=0),
        fused=False,
    ),
    "olmo2": Row("Olmo2", "norms after attention and MLP alone, queries normalised together", fused=False),
    "baichuan": Row(
        "Llama",
        "one matrix of queries, keys and values, normalised rows of the output matrix",
        {"num_key_value_heads": 8},
        becomes=("BaichuanForCausalLM", as_baichuan),
        before=with_unit_rows,
    ),
    "baichuan-alibi": Row(
        "Llama",
        "ALiBi, normalised rows of the output matrix",
        {"num_key_value_heads": 8},
        becomes=("BaichuanForCausalLM", as_baichuan_alibi),
        before=with_unit_rows,
        reference=with_alibi,
    ),
    "qwen": Row(
        "Qwen2",
        "names of its own, queries, keys and values in one matrix",
        {"num_key_value_heads": 8},
        becomes=("QWenLMHeadModel", as_qwen),
    ),
    "chatglm": Row(
        "Glm",
        "GLM-4's layers under other names",
        dict(head_dim=16, attention_bias=True, pad_token_id=0),
        becomes=("ChatGLMModel", as_chatglm),
    ),
    **{name: Row(**fields) for name, fields in VISION_ROWS.items()},
    "llama-modules": Row("Llama", "grouped-query attention, heads of their own size", {"head_dim": 16}, **MODULES),
    "gpt2-modules": Row("GPT2", "matrices that are no linear layers", {}, "GPT2LMHeadModel", GPT2_SHAPE, **MODULES),
    "gemma-modules": Row("Gemma", "scaled embeddings, norms around one", {"head_dim": 16}, **MODULES),
    "gemma2-modules": Row(
        "Gemma2", "soft caps, windows in every other layer",
        dict(head_dim=16, sliding_window=24, query_pre_attn_scalar=5, **GEMMA2_CAPS), **MODULES
    ),
    "stablelm-modules": Row("StableLm", "partial rotation, biases", {"use_qkv_bias": True}, **MODULES),
    "olmo-modules": Row("Olmo", "norms without weights, clipped queries and keys", {"clip_qkv": 0.3}, **MODULES),
    "olmo2-modules": Row("Olmo2", "norms behind attention and MLP, and of whole queries and keys", **MODULES),
    "cohere-modules": Row(
        "Cohere", "side by side, normalised heads, scaled logits", dict(use_qk_norm=True, logit_scale=2.0), **MODULES
    ),
    "cohere2-modules": Row("Cohere2", "windows and rotation in three of four layers",
        dict(num_hidden_layers=4, sliding_window=24, logit_scale=2.0), **MODULES),
    "starcoder2-modules": Row("Starcoder2", "sliding window, biases, tied", {"sliding_window": 24}, **MODULES),
    "nemotron-modules": Row("Nemotron", "squared ReLU, norms around one, partial rotation", **MODULES),
    "smollm3-modules": Row("SmolLM3", "one in four layers without rotation",
        dict(num_hidden_layers=4, pad_token_id=0), **MODULES),
}  # fmt: skip


_KEPT = KeptModels()


def save_row(folder: Path, row: Row, dtype: torch.dtype = torch.float32) -> Any:
    """Save a random model of ``row`` and return transformers' own of it, in fp32."""
    for name, each in ROWS.items():
        if each is row:
            return _KEPT.save((name, dtype), folder, lambda made: _make_row(made, row, dtype))
    return _make_row(folder, row, dtype)


def _make_row(folder: Path, row: Row, dtype: torch.dtype) -> Any:
    import copy

    import transformers

    torch.manual_seed(20240607)
    config = getattr(transformers, f"{row.family}Config")(**{**row.shape, **copy.deepcopy(row.fields)})
    model = getattr(transformers, row.model_class)(config)
    randomize(model)
    if row.before is not None:
        row.before(model)
    copy.deepcopy(model).to(dtype).save_pretrained(folder)
    reference = load_reference(folder)
    if row.reference is not None:
        row.reference(reference)
    if row.becomes is not None:
        row.becomes[1](folder)
    return reference


def in_one_tensor(folder: Path, target: Path) -> None:
    """The model of ``folder`` as transformers saves it when it keeps its own form: a tensor for all experts."""
    load_reference(folder).save_pretrained(target, save_original_format=False)


def save_mixture(name: str, folder: Path) -> Path:
    """The folder of the model of a row; of its name with ``-one``, as :func:`in_one_tensor` saves it."""
    save_row(folder, ROWS[name.removesuffix("-one")])
    if not name.endswith("-one"):
        return folder
    in_one_tensor(folder, folder / "one")
    return folder / "one"
