"""The metadata of a step, which every layer needs. Passed down explicitly; there is no global context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blade_llm.kernels.kv_rows import QuantizedRows
from blade_llm.kernels.lora import AdapterBatch, TokenGroups
from blade_llm.kernels.paged_attention import PreparedAttention
from blade_llm.layers.latent_prefill import ExpandedPrefills

KVCache = list[tuple[Tensor, Tensor]]
"""For each layer keys and values, both [blocks, block_size, kv_heads, head_dim], quantised ones as
:class:`~blade_llm.kernels.kv_rows.QuantizedRows` packs them."""


@dataclass(frozen=True, slots=True)
class WholeSequences:
    """The attention of a step of an encoder: each token sees its whole sequence, which the step holds."""

    lengths: list[int]
    """Tokens of each sequence."""


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Where a model's hidden states are kept, for a head that drafts from them."""

    cache: Tensor
    """[blocks * block_size, hidden]: each token's state lies where its keys and values do."""
    after: tuple[int, ...]
    """They are those after so many layers, in this order; empty: those after the last norm."""
    combine: Callable[[Tensor], Tensor] | None = None
    """Makes one of each token's states, which lie side by side."""

    def write(self, slot_mapping: Tensor, states: Tensor) -> None:
        """Keep the states of a step's tokens, [tokens, len(after) * hidden]."""
        combined = states if self.combine is None else self.combine(states)
        self.cache.index_copy_(0, slot_mapping, combined)

    def write_after(self, slot_mapping: Tensor, states: dict[int, Tensor]) -> None:
        """The same of what is after each number of layers, [tokens, hidden] each."""
        self.write(slot_mapping, torch.cat([states[count] for count in self.after], dim=1))

    def read(self, slot_mapping: Tensor) -> Tensor:
        """[tokens, hidden]."""
        return self.cache.index_select(0, slot_mapping)


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
    states: HiddenStates | None = None
    """Where the model leaves its hidden states, or a head finds them; None: nobody wants them."""
    kv_rows: QuantizedRows | None = None
    """How the rows of ``kv_cache`` are packed; None: they are not quantised."""
    image_rows: Tensor | None = None
    """[n] int64, each once: which of the step's tokens are fed with ``image_embeddings`` in place of the table's."""
    image_embeddings: Tensor | None = None
    """[1 + levels, n, hidden] in the type of the activations: the embeddings, then what is added to the hidden states
    of these tokens after layers 0, 1, … (DeepStack: Meng et al., arXiv 2406.04334); without deepstack levels is 0. A
    stage of a pipeline with layers from ``start`` on takes them from [start] on, and passes over the first of
    those."""
    axis_positions: Tensor | None = None
    """[3, tokens] int64: each token's temporal position, row and column, of a model whose rotation has sections; None:
    all three are ``positions``, as those of text are."""

    @property
    def levels(self) -> int:
        """How many layers' states something is added to, from the first layer on."""
        return 0 if self.image_embeddings is None else len(self.image_embeddings) - 1

    def of_selected(self) -> StepMetadata:
        """The step for linear layers, from where on only the selected tokens are computed."""
        return self if self.adapters is None else replace(self, adapters=self.selected_adapters)


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotary angles of a step's tokens, shared by all layers: [tokens, head_dim / 2] fp32 each."""

    cos: Tensor
    sin: Tensor
