"""The forward pass of one model over the slot tables: gathers tokens and positions there, and prepares attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blade_llm.cache.sizing import BLOCK_SIZE
from blade_llm.kernels.gather_inputs import gather_inputs
from blade_llm.kernels.kv_rows import QuantizedRows
from blade_llm.kernels.paged_attention import PreparedAttention, RaggedBatch, prepare
from blade_llm.layers.latent_prefill import ExpandedPrefills, expanded_prefills
from blade_llm.layers.step import HiddenStates, KVCache, StepMetadata, WholeSequences
from blade_llm.models.config import ModelConfig
from blade_llm.models.model import Model
from blade_llm.runner.lora.step import StepAdapters
from blade_llm.runner.tables import SlotTables
from blade_llm.runner.vision.images import StepImages
from blade_llm.runner.vision.positions import AxisTable
from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.modules import ModulesSpec


def allocate_second_texts(config: ModelConfig, tables: SlotTables) -> Tensor | None:
    """[slots] int64: where the second text of each pair begins, for encoders that tell the two apart."""
    if config.decoder.token_types <= 1 or config.decoder.classifier is None:
        return None
    return torch.zeros(len(tables.token_ids), dtype=torch.int64, device=tables.token_ids.device)


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """The inputs of one kind of model, and its KV cache, whose block tables are those of the slots."""

    config: ModelConfig
    kv_cache: KVCache
    tables: SlotTables
    deterministic: bool
    torch_attention: bool
    """Attention by torch on a GPU, too."""
    second_texts: Tensor | None = None
    """[slots] int64: where the second text of each pair begins, for encoders that tell the two apart."""
    smaller_vocabulary: bool = False
    """The tables may hold tokens that the model does not have: they are taken for its last one."""
    states: HiddenStates | None = None
    """Where the model's hidden states are kept, or found by a head."""
    kv_rows: QuantizedRows | None = None
    """How rows of ``kv_cache`` are packed; None: they are not quantised."""
    axes: AxisTable | None = None
    """Positions on three axes, of a model whose rotation has sections."""

    def __call__(
        self,
        model: Model,
        batch: RaggedBatch,
        starts: Tensor,
        num_tokens: int,
        selected: Tensor | None = None,
        adapters: StepAdapters | None = None,
        images: StepImages | None = None,
    ) -> Tensor:
        """Hidden states of the ``selected`` tokens of a step, or of all: [selected, hidden].

        ``starts``: [sequences] int64, the first new position of each; ``images``: what image tokens are fed with.
        """
        tables = self.tables
        token_ids, positions, slot_mapping = gather_inputs(
            batch.slots, starts, batch.query_starts, tables.token_ids, tables.block_table, BLOCK_SIZE, num_tokens
        )
        if self.config.is_head:
            where = batch.slots, starts + 1, batch.query_starts
            token_ids, _, _ = gather_inputs(*where, tables.token_ids, tables.block_table, BLOCK_SIZE, num_tokens)
        if self.smaller_vocabulary:
            token_ids = token_ids.clamp(max=self.config.vocab_size - 1)
        if batch.tree is not None:
            positions = positions - batch.tree[:, 2]
        token_types: Tensor | None = None
        expanded: ExpandedPrefills | None = None
        if self.config.decoder.bidirectional:
            attention, token_types = self._whole_sequences(batch, positions, num_tokens)
        else:
            attention = self._attention(batch)
            if (latent := self._latent) is not None and not self.deterministic and batch.tree is None:
                expanded = expanded_prefills(latent, batch, tables.block_table, self.kv_cache[0][0])
        metadata = StepMetadata(
            positions,
            slot_mapping,
            attention,
            self.kv_cache,
            token_types,
            expanded,
            states=self.states,
            kv_rows=self.kv_rows,
            image_rows=None if images is None else images.rows,
            image_embeddings=None if images is None else images.embeddings,
            axis_positions=None if self.axes is None else self.axes.gather(batch, positions),
        )
        if adapters is not None:
            of_tokens, of_selected = adapters.groups(batch, num_tokens, selected)
            metadata = replace(metadata, adapters=of_tokens, selected_adapters=of_selected)
        return model(token_ids, metadata, selected)

    def _attention(self, batch: RaggedBatch) -> PreparedAttention | WholeSequences:
        return prepare(
            batch,
            self.tables.block_table,
            self.kv_cache[0][0],
            self.config.num_heads,
            deterministic=self.deterministic,
            reference=self.torch_attention,
            rows=self.kv_rows,
        )

    def _whole_sequences(
        self, batch: RaggedBatch, positions: Tensor, num_tokens: int
    ) -> tuple[PreparedAttention | WholeSequences, Tensor | None]:
        """Attention of an encoder, and the types of its tokens."""
        assert batch.host_query_lens == batch.host_seq_lens, "an encoder computes whole sequences"
        attention = WholeSequences(batch.host_query_lens)
        if self.second_texts is None:
            return attention, None
        lengths = batch.query_starts.diff()
        begins = self.second_texts.index_select(0, batch.slots).repeat_interleave(lengths, output_size=num_tokens)
        return attention, (positions >= begins).long()

    @property
    def _latent(self) -> LatentAttentionSpec | None:
        """Multi-head latent attention, where the model has it."""
        decoder = self.config.decoder
        if isinstance(decoder, ModulesSpec):
            return None
        first = decoder.layers[0].attention
        return first if isinstance(first, LatentAttentionSpec) else None
