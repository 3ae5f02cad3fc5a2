"""Architectures that transformers does not have, made of folders of such as compute the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

_MLP = ("gate", "up", "down")


def _rewrite(folder: Path, modules: Mapping[str, str], packed: str, fields: Mapping[str, Any]) -> None:
    """``modules``: theirs to ours, ``{}`` for the layer. ``packed``: ours for queries, keys and values in one."""
    config = json.loads((folder / "config.json").read_text())
    theirs = load_file(folder / "model.safetensors")
    ours = {}
    for index in range(config["num_hidden_layers"]):
        for kind in ("weight", "bias"):
            parts = [f"model.layers.{index}.self_attn.{name}_proj.{kind}" for name in "qkv"]
            if parts[0] in theirs:
                ours[f"{packed.format(index)}.{kind}"] = torch.cat([theirs.pop(part) for part in parts])
        for old, new in modules.items():
            for kind in ("weight", "bias"):
                if f"{old.format(index)}.{kind}" in theirs:
                    ours[f"{new.format(index)}.{kind}"] = theirs.pop(f"{old.format(index)}.{kind}")
    assert not theirs
    save_file(ours, folder / "model.safetensors")
    kept = ("hidden_size", "num_attention_heads", "vocab_size", "dtype", "eos_token_id", "bos_token_id")
    kept_fields = {name: config[name] for name in kept}
    (folder / "config.json").write_text(json.dumps(kept_fields | {"tie_word_embeddings": False} | dict(fields)))


def _fields(folder: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return fields


def as_mimo(folder: Path) -> None:
    """Of Qwen2."""
    config = {**_fields(folder), "architectures": ["MiMoForCausalLM"], "model_type": "mimo"}
    (folder / "config.json").write_text(json.dumps(config))


def as_qwen(folder: Path) -> None:
    """Of Qwen2. In Qwen's own code the MLP is ``c_proj(w1(x) * silu(w2(x)))``."""
    config, layer = _fields(folder), "transformer.h.{}"
    modules = {
        "model.embed_tokens": "transformer.wte",
        "model.norm": "transformer.ln_f",
        "lm_head": "lm_head",
        "model.layers.{}.input_layernorm": f"{layer}.ln_1",
        "model.layers.{}.self_attn.o_proj": f"{layer}.attn.c_proj",
        "model.layers.{}.post_attention_layernorm": f"{layer}.ln_2",
        "model.layers.{}.mlp.gate_proj": f"{layer}.mlp.w2",
        "model.layers.{}.mlp.up_proj": f"{layer}.mlp.w1",
        "model.layers.{}.mlp.down_proj": f"{layer}.mlp.c_proj",
    }
    fields = {
        "architectures": ["QWenLMHeadModel"],
        "num_hidden_layers": config["num_hidden_layers"],
        "intermediate_size": 2 * config["intermediate_size"],
        "layer_norm_epsilon": config["rms_norm_eps"],
        "rotary_emb_base": config["rope_parameters"]["rope_theta"],
        "seq_length": config["max_position_embeddings"],
        "max_position_embeddings": 4 * config["max_position_embeddings"],
        "use_dynamic_ntk": True,
        "use_logn_attn": True,
        "no_bias": True,
    }
    _rewrite(folder, modules, f"{layer}.attn.c_attn", fields)


def as_chatglm(folder: Path) -> None:
    """Of GLM, which has the same matrix of gate and up, and the same rotation."""
    config, layer = _fields(folder), "transformer.encoder.layers.{}"
    modules = {
        "model.embed_tokens": "transformer.embedding.word_embeddings",
        "model.norm": "transformer.encoder.final_layernorm",
        "lm_head": "transformer.output_layer",
        "model.layers.{}.input_layernorm": f"{layer}.input_layernorm",
        "model.layers.{}.self_attn.o_proj": f"{layer}.self_attention.dense",
        "model.layers.{}.post_attention_layernorm": f"{layer}.post_attention_layernorm",
        "model.layers.{}.mlp.gate_up_proj": f"{layer}.mlp.dense_h_to_4h",
        "model.layers.{}.mlp.down_proj": f"{layer}.mlp.dense_4h_to_h",
    }
    fields = {
        "architectures": ["ChatGLMModel"],
        "num_layers": config["num_hidden_layers"],
        "padded_vocab_size": config["vocab_size"],
        "ffn_hidden_size": config["intermediate_size"],
        "layernorm_epsilon": config["rms_norm_eps"],
        "kv_channels": config["head_dim"],
        "multi_query_attention": True,
        "multi_query_group_num": config["num_key_value_heads"],
        "seq_length": config["max_position_embeddings"],
        "add_qkv_bias": True,
        "add_bias_linear": False,
        "rmsnorm": True,
        "post_layer_norm": True,
    }
    _rewrite(folder, modules, f"{layer}.self_attention.query_key_value", fields)


def as_baichuan(folder: Path) -> None:
    """Of Llama, whose output matrix has rows of length 1 (:func:`with_unit_rows`): Baichuan 2's own is made longer."""
    config, layer = _fields(folder), "model.layers.{}"
    theirs = load_file(folder / "model.safetensors")
    theirs["lm_head.weight"] *= torch.linspace(0.5, 3.0, config["vocab_size"])[:, None]
    save_file(theirs, folder / "model.safetensors")
    names = ("input_layernorm", "self_attn.o_proj", "post_attention_layernorm", *(f"mlp.{x}_proj" for x in _MLP))
    modules = {name: name for name in ("model.embed_tokens", "model.norm", "lm_head")}
    modules |= {f"{layer}.{name}": f"{layer}.{name}" for name in names}
    same = ("num_hidden_layers", "intermediate_size", "rms_norm_eps", "max_position_embeddings", "hidden_act")
    fields = {"architectures": ["BaichuanForCausalLM"], **{name: config[name] for name in same}}
    _rewrite(folder, modules, f"{layer}.self_attn.W_pack", fields)


def as_baichuan_alibi(folder: Path) -> None:
    """As the configuration of 13B has the longest sequence."""
    as_baichuan(folder)
    config = _fields(folder)
    config["model_max_length"] = config.pop("max_position_embeddings")
    (folder / "config.json").write_text(json.dumps(config))


def with_unit_rows(model: Any) -> None:
    """Divides the rows of a model's output matrix by their norms, in place."""
    with torch.no_grad():
        model.lm_head.weight.copy_(F.normalize(model.lm_head.weight))


def with_alibi(model: Any) -> None:
    """Makes transformers' Llama add BLOOM's slopes to its scores, and rotate by nothing, in place."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.llama.modeling_llama import eager_attention_forward

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **options: Any) -> Any:
        alibi = build_alibi_tensor(torch.ones(1, k.shape[2]), q.shape[1], torch.float32)
        return eager_attention_forward(module, q, k, v, mask + alibi[None].to(mask.dtype), **options)

    ALL_ATTENTION_FUNCTIONS.register("llama_with_alibi", attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register("llama_with_alibi", ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    model.set_attn_implementation("llama_with_alibi")
    model.model.rotary_emb.inv_freq.zero_()
    model.model.rotary_emb.original_inv_freq.zero_()


def with_correction(model: Any) -> None:
    """A bias that changes which experts tokens go to; transformers begins with zeros."""
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.uniform_(-0.2, 0.2)
