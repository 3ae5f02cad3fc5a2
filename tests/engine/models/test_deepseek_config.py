"""What is read from DeepSeek's ``config.json``: the published ones, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from blade_llm.cache.sizing import kv_block_bytes, kv_token_bytes, plan_blocks
from blade_llm.models.config import ModelConfig, load_model_config
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.memory import weight_bytes
from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.moe import MoESpec

LATENTS = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
YARN = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096}
V2_LITE: dict[str, Any] = {
    **LATENTS, "architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 2048, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
    "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
    "moe_layer_freq": 1, "q_lora_rank": None, "topk_method": "greedy", "scoring_func": "softmax", "n_group": 1,
    "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.0, "vocab_size": 102400,
    "max_position_embeddings": 163840, "rope_theta": 10000, "torch_dtype": "bfloat16",
    "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
}  # fmt: skip
V3: dict[str, Any] = {
    **LATENTS, "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "q_lora_rank": 1536, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "n_group": 8,
    "topk_group": 4, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "vocab_size": 129280,
    "max_position_embeddings": 163840, "rope_theta": 10000, "torch_dtype": "bfloat16",
    "num_nextn_predict_layers": 1, "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
}  # fmt: skip


def read(folder: Path, fields: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(fields))
    return load_model_config(folder)


def refused(folder: Path, fields: dict[str, Any]) -> str:
    with pytest.raises(ModelFilesError) as caught:
        read(folder, fields)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "billions", "kv_bytes", "mscale"), [(V2_LITE, 15.7, 31104, 0.707), (V3, 671.0, 70272, 1.0)]
)
def test_the_published_sizes(
    tmp_path: Path, fields: dict[str, Any], billions: float, kv_bytes: int, mscale: float
) -> None:
    """Parameters as the papers count them; in bf16 a token takes 576 numbers a layer, keys and values together."""
    config = read(tmp_path, fields)
    assert weight_bytes(config, "bfloat16") / 2e9 == pytest.approx(billions, abs=0.1)
    assert kv_token_bytes(config, "bfloat16") == kv_bytes == fields["num_hidden_layers"] * 576 * 2
    assert kv_block_bytes(config, "bfloat16") == 16 * kv_bytes
    assert plan_blocks(config, "bfloat16", kv_cache_bytes=64 * kv_bytes, max_model_len=64).tokens == 64
    assert config.max_position_embeddings == 163840
    attention = config.decoder.layers[-1].attention
    assert isinstance(attention, LatentAttentionSpec)
    assert attention.scale == pytest.approx(192**-0.5 * (0.1 * mscale * math.log(40) + 1) ** 2)
    sparse = [isinstance(layer.mlp, MoESpec) for layer in config.decoder.layers]
    assert sparse.index(True) == fields["first_k_dense_replace"]
    assert all(sparse[fields["first_k_dense_replace"] :])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({**V3, "quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}}, "FP8's 'fmt' 'e5m2' is not supported"),
        ({**V3, "topk_method": "group_limited_greedy"}, "'topk_method' 'group_limited_greedy' is not supported"),
        ({**V3, "scoring_func": "softmax"}, "'scoring_func' 'softmax' is not supported; 'sigmoid' is"),
        ({**V3, "hidden_act": "gelu"}, "experts with activation 'gelu'"),
        ({**V3, "moe_layer_freq": 2}, "'moe_layer_freq' 2 is not supported"),
        ({**V3, "topk_group": 9}, "top_groups must be 1 to 8 (num_groups), not 9"),
        ({**V3, "num_nextn_predict_layers": -1}, "'num_nextn_predict_layers' must be a whole number of at least 0"),
        ({**V2_LITE, "norm_topk_prob": True}, "'norm_topk_prob' True is not supported; False is"),
        ({**V2_LITE, "num_key_value_heads": 8}, "'num_key_value_heads' other than 'num_attention_heads'"),
        ({**V2_LITE, "attention_bias": True}, "'attention_bias' without 'q_lora_rank' is not supported"),
        ({**V2_LITE, "qk_rope_head_dim": 63}, "'qk_rope_head_dim' 63 is odd"),
        ({**V2_LITE, "kv_lora_rank": 0}, "'kv_lora_rank' must be a positive integer, not 0"),
        ({**V2_LITE, "first_k_dense_replace": "1"}, "'first_k_dense_replace' must be a whole number of at least 0"),
        ({**V2_LITE, "num_experts_per_tok": None}, "'num_experts_per_tok' is missing"),
    ],
)  # fmt: skip
def test_what_is_not_computed_is_named(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    assert reason in refused(tmp_path, fields)


def test_weights_of_8_bits(tmp_path: Path) -> None:
    """As DeepSeek publishes them: all linear layers but routers and the output matrix, also what is multiplied head by
    head."""
    tensors = read(tmp_path, {**V3, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})
    expected = tensors.tensors.expected()
    scales = {name: shape for name, shape in expected.items() if name.endswith("weight_scale_inv")}
    assert scales["model.layers.0.self_attn.kv_b_proj.weight_scale_inv"] == (256, 4)
    assert scales["model.layers.3.mlp.experts.255.down_proj.weight_scale_inv"] == (56, 16)
    assert not [name for name in scales if "lm_head" in name or "mlp.gate." in name]
    assert len(scales) == sum(len(linear.parts) for linear in tensors.tensors.linears.values()) - 1 + 61


def test_layers_for_multi_token_prediction_have_no_place(tmp_path: Path) -> None:
    tensors = read(tmp_path, V3).tensors
    assert tensors.skipped == ("model.layers.61.",)
    assert not [name for name in tensors.expected() if name.startswith(tensors.skipped)]
    assert read(tmp_path, {**V3, "num_nextn_predict_layers": None}).tensors.skipped == ()
