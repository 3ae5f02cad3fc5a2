"""Gemma's configurations as hubs have them, in the forms before transformers 5."""

from __future__ import annotations

from typing import Any

import pytest

from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.families.gemma import GEMMA, GEMMA2, GEMMA3
from blade_llm.models.raw_config import RawConfig

FIELDS: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "sliding_window": 512,
}


def test_gemma3_in_both_forms() -> None:
    older = {
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 6,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    }
    newer = {
        "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    }
    spec = GEMMA3.decoder(RawConfig(FIELDS | older))
    assert spec == GEMMA3.decoder(RawConfig(FIELDS | newer))
    assert [layer.attention.window for layer in spec.layers] == [512] * 5 + [0, 512]
    assert spec == GEMMA3.decoder(RawConfig(FIELDS | {"rope_scaling": older["rope_scaling"]}))  # the rest are defaults


def test_gemma2_defaults_and_nulls() -> None:
    spec = GEMMA2.decoder(RawConfig(FIELDS))
    assert (spec.layers[0].attention.softcap, spec.logits_softcap) == (50.0, 30.0)
    assert [layer.attention.window for layer in spec.layers] == [512, 0, 512, 0, 512, 0, 512]
    none = GEMMA2.decoder(RawConfig(FIELDS | {"attn_logit_softcapping": None, "final_logit_softcapping": None}))
    assert (none.layers[0].attention.softcap, none.logits_softcap) == (0.0, 0.0)


def test_gelu_of_the_first_checkpoints_is_the_tanh_form() -> None:
    (mlp,) = {layer.mlp for layer in GEMMA.decoder(RawConfig(FIELDS | {"hidden_act": "gelu"})).layers}
    assert mlp.activation == "gelu_tanh"


def test_bidirectional_attention_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="use_bidirectional_attention"):
        GEMMA3.decoder(RawConfig(FIELDS | {"use_bidirectional_attention": True}))
