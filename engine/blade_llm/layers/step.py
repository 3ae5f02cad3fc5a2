"""The metadata of a step, which every layer needs. Passed down explicitly; there is no global context."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from blade_llm.kernels.lora import AdapterBatch, TokenGroups
from blade_llm.kernels.paged_attention import PreparedAttention
from blade_llm.layers.latent_prefill import ExpandedPrefills

KVCache = list[tuple[Tensor, Tensor]]
"""For each layer keys and values, both [blocks, block_size, kv_heads, head_dim]."""


@dataclass(frozen=True, slots=True)
class WholeSequences:
    """The attention of a step of an encoder: each token sees its whole sequence, which the step holds."""

    lengths: list[int]
    """Tokens of each sequence."""


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """A ragged batch of tokens, the sequences one after another."""

    positions: Tensor
    """[tokens] int64: each token's position in its own sequence."""
    slot_mapping: Tensor
    """[tokens] int64: where its keys and values go, ``block * block_size + offset``."""
    attention: PreparedAttention
    """Of an encoder: :class:`WholeSequences`."""
    kv_cache: KVCache
    token_types: Tensor | None = None
    """[tokens] int64, of an encoder that tells a pair's second text (1) from its first (0); None: all are 0."""
    expanded: ExpandedPrefills | None = None
    """Of latent attention: prefills that are computed in the expanded form."""
    adapters: AdapterBatch | TokenGroups | None = None
    """The tokens that use LoRA adapters; None: no token does."""
    selected_adapters: AdapterBatch | TokenGroups | None = None
    """Those of the tokens that the last layer goes on with, counted among these."""

    def of_selected(self) -> StepMetadata:
        """The step for linear layers, from where on only the selected tokens are computed."""
        return self if self.adapters is None else replace(self, adapters=self.selected_adapters)


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotary angles of a step's tokens, shared by all layers: [tokens, head_dim / 2] fp32 each."""

    cos: Tensor
    sin: Tensor
