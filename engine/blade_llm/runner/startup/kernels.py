"""What a model's steps can ask of the kernels, compiled before the first one comes."""

from __future__ import annotations

import torch
from torch import Tensor

from blade_llm.cache.sizing import BLOCK_SIZE
from blade_llm.config import EngineConfig, SpeculativeConfig
from blade_llm.kernels.kv_rows import QuantizedRows
from blade_llm.kernels.paged_attention import AttentionVariant
from blade_llm.kernels.paged_attention import warm as warm_attention
from blade_llm.kernels.warm import warm_family, warm_latent, warm_layers, warm_step
from blade_llm.layers.attention import variant_of
from blade_llm.layers.step import KVCache
from blade_llm.models.config import ModelConfig
from blade_llm.models.decoder import Decoder
from blade_llm.models.model import Model
from blade_llm.runner.kv_cache import rows_of
from blade_llm.runner.tables import SlotTables
from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.modules import ModulesSpec
from blade_llm.spec.moe import MoESpec


def warm_all(
    model: Model,
    model_config: ModelConfig,
    config: EngineConfig,
    tables: SlotTables,
    kv_cache: KVCache,
    dtype: torch.dtype,
    torch_attention: bool,
) -> None:
    """Every variant of every operator's kernel that the model's steps over ``tables`` and ``kv_cache`` can meet.
    ``torch_attention``: attention is torch's own."""
    logits = torch.zeros(1, model_config.vocab_size, dtype=dtype, device=tables.token_ids.device)
    warm_step(tables.token_ids, tables.block_table, BLOCK_SIZE, logits)
    if model_config.decoder.bidirectional:
        return
    rows = rows_of(model_config.kv, dtype)
    warm_norms_and_gates(model_config.decoder, dtype, *kv_cache[0], rows=rows)
    if isinstance(model, Decoder):
        model.warm_experts()
    if not torch_attention:
        block_table, speculative = tables.block_table, config.speculative
        warm_paged_attention(model_config.decoder, kv_cache[0], block_table, config.deterministic, speculative, rows)


def warm_norms_and_gates(
    spec: DecoderSpec | ModulesSpec,
    dtype: torch.dtype,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    rows: QuantizedRows | None = None,
) -> None:
    """Norms, activations, and rotation with cache write. None for transformers' modules, which call torch for them."""
    if isinstance(spec, ModulesSpec):
        return
    hidden, layers = spec.hidden_size, spec.layers
    mlps = {layer.mlp.shared if isinstance(layer.mlp, MoESpec) else layer.mlp for layer in layers}
    gated = {mlp.inner for mlp in mlps if mlp is not None and mlp.gated and mlp.activation == "silu"}
    attentions = [layer.attention for layer in layers]
    latent = [a for a in attentions if isinstance(a, LatentAttentionSpec)]
    of_heads = {a.head_norm.kind for a in attentions if a.head_norm is not None and not a.head_norm_whole}
    warm_layers(
        dtype,
        k_cache,
        hidden=hidden,
        inner=sorted(gated),
        num_heads=0 if latent else spec.num_heads,
        qk_norm=bool(of_heads),
        unit_offset="rms_unit_offset" in of_heads,
        rows=rows,
        v_cache=v_cache,
    )
    norms = [norm for layer in layers for norm in layer.norms]
    if spec.final_norm is not None:
        norms.append(spec.final_norm)
    warm_family(
        dtype,
        k_cache.device,
        hidden=hidden,
        norms={norm.kind for norm in norms},
        biases=any(norm.bias for norm in norms),
        activations={(mlp.activation, mlp.gated, mlp.inner) for mlp in mlps if mlp is not None},
    )
    for a in dict.fromkeys(latent):
        warm_latent(dtype, k_cache, a)
    whole = [a for a in attentions if isinstance(a, AttentionSpec) and a.head_norm_whole]
    for width in {size for a in whole for size in (a.query_size, a.kv_size)}:
        warm_family(dtype, k_cache.device, hidden=width, norms={"rms"})


def warm_paged_attention(
    spec: DecoderSpec | ModulesSpec,
    cache: tuple[Tensor, Tensor],
    block_table: Tensor,
    deterministic: bool,
    speculative: SpeculativeConfig | None = None,
    rows: QuantizedRows | None = None,
) -> None:
    """Attention with every option and window that some layer has. ``cache``: keys and values of any layer;
    ``speculative``: steps verify draft tokens; ``rows``: how the cache is quantised."""
    drafts, branches = speculative is not None, speculative is not None and speculative.branch_depth > 0
    k_cache, v_cache = cache
    for variant, windows in _variants(spec, k_cache.device):
        warm_attention(
            k_cache, block_table, spec.num_heads, windows, deterministic, variant, v_cache, drafts, branches, rows
        )


def _variants(spec: DecoderSpec | ModulesSpec, device: torch.device) -> list[tuple[AttentionVariant, tuple[int, ...]]]:
    if isinstance(spec, ModulesSpec):
        pairs = set(zip(spec.softcaps, spec.windows, strict=True))
        return [
            (AttentionVariant(softcap=cap), tuple(sorted(window for other, window in pairs if other == cap)))
            for cap in sorted(set(spec.softcaps))
        ]
    found = []
    attentions = [layer.attention for layer in spec.layers]
    for options in {(a.softcap, a.alibi_slopes) for a in attentions}:
        alike = [a for a in attentions if (a.softcap, a.alibi_slopes) == options]
        found.append((variant_of(*options, device), tuple(sorted({a.window for a in alike}))))
    return found
