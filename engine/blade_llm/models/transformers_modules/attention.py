"""The attention function that transformers' modules call in the place of their own.

transformers looks it up by name for each call (``AttentionInterface``) and builds no mask for it, as no mask function
has that name: tokens of many sequences lie in one row, and what each sees is the paged cache's matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

from blade_llm.kernels.paged_attention import PLAIN, AttentionVariant, paged_attention
from blade_llm.layers.step import StepMetadata
from blade_llm.models.errors import UnsupportedModelError

NAME: Final = "blade_paged"
_HARMLESS: Final = frozenset({"sliding_window", "position_ids", "cache_position", "position_embeddings"})
"""Of what a module passes by name: what is read, or has been applied before."""


class Attend(Protocol):
    """Attention of one layer."""

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int,
        options: Mapping[str, Any],
    ) -> Tensor:
        """``query``: [1, heads, tokens, head_dim]; ``key``, ``value``: [1, kv_heads, tokens, head_dim], rotated.

        ``options``: what else the module has passed. Returns [1, tokens, heads, head_dim].
        """


def connect(model: nn.Module, attend: Attend) -> None:
    """Have all attention of ``model``, built for :data:`NAME`, computed by ``attend``."""
    for module in model.modules():
        module.blade_attend = attend  # type: ignore[assignment]


def unsupported(options: Mapping[str, Any]) -> str:
    """Why attention with these options is not what the paged cache computes; empty when it is."""
    if options.get("is_causal") is False:
        return "attention to later tokens"
    tensors = [
        name for name, value in options.items() if name not in _HARMLESS and isinstance(value, Tensor | list | tuple)
    ]
    return f"attention with {tensors[0]!r}" if tensors else ""


def softcap_of(options: Mapping[str, Any]) -> float:
    """What attention scores are capped at (Gemma 2); 0: they stay."""
    return float(options.get("softcap") or 0.0)


class PagedAttention:
    """Writes keys and values to the cache of :attr:`step` and attends over it."""

    def __init__(self) -> None:
        self.step: StepMetadata | None = None
        """Of the forward pass that is going on."""
        self._variants: dict[float, AttentionVariant] = {0.0: PLAIN}
        """By soft cap: an implementation keeps what it derives from one."""

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int,
        options: Mapping[str, Any],
    ) -> Tensor:
        step = self.step
        assert step is not None
        k_cache, v_cache = step.kv_cache[layer]
        quantized = step.kv_rows
        dtype = k_cache.dtype if quantized is None else quantized.dtype
        keys, values = (new[0].transpose(0, 1).to(dtype) for new in (key, value))
        if quantized is not None:
            keys, values = quantized.quantize(keys), quantized.values.quantize(values)
        for cache, rows in ((k_cache, keys), (v_cache, values)):
            cache.view(-1, *cache.shape[2:]).index_copy_(0, step.slot_mapping, rows)
        q = query[0].transpose(0, 1).to(dtype).contiguous()
        softcap = softcap_of(options)
        variant = self._variants.setdefault(softcap, AttentionVariant(softcap=softcap))
        return paged_attention(q, k_cache, v_cache, step.attention, scale, window, variant).view(1, *q.shape)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """As ``AttentionInterface`` calls it."""
    layer, attend = getattr(module, "layer_idx", None), getattr(module, "blade_attend", None)
    if attend is None:  # some other model in this process, with a name that is ours
        raise RuntimeError(f"attn_implementation {NAME!r} is for models that this engine has built")
    if not isinstance(layer, int):
        raise UnsupportedModelError(f"{type(module).__name__} does not say which layer it belongs to")
    if not getattr(module, "is_causal", True):
        options["is_causal"] = False
    if attention_mask is not None:
        options["attention_mask"] = attention_mask
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    return attend(layer, query, key, value, scale, sliding_window or 0, options), None


AttentionInterface.register(NAME, _attend)
