"""The tensors that a model of a given configuration needs, by name and shape.

Kept apart from the modules that compute, and free of torch, so that ``blade_llm_check`` can judge a folder in
milliseconds; the loader uses the same function, so both always agree.
"""

from __future__ import annotations

from blade_llm.models.config import ModelConfig
from blade_llm.models.families import require_supported


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face names of all tensors of ``config`` and their shapes; linear weights are ``[out, in]``.

    ``lm_head.weight`` is left out when the embeddings are tied. Raises :class:`UnsupportedModelError`.
    """
    require_supported(config.architecture)
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key_value = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (query, hidden, config.attention_bias),
        "self_attn.k_proj": (key_value, hidden, config.attention_bias),
        "self_attn.v_proj": (key_value, hidden, config.attention_bias),
        "self_attn.o_proj": (hidden, query, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    for name, (rows, columns, bias) in linears.items():
        layer[f"{name}.weight"] = (rows, columns)
        if bias:
            layer[f"{name}.bias"] = (rows,)

    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for index in range(config.num_layers):
        tensors.update({f"model.layers.{index}.{name}": shape for name, shape in layer.items()})
    tensors["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        tensors["lm_head.weight"] = (config.vocab_size, hidden)
    return tensors
