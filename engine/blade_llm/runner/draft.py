"""The draft model: computes its own keys and values over the target's block tables, and writes draft tokens into the
slot tables, where the target's forward pass finds them.

A draft token is sampled with the request's own parameters and the noise that the target will use at that position, so
it is right whenever both models put the same token first after that noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from blade_llm.cache.sizing import BLOCK_SIZE
from blade_llm.config import EngineConfig
from blade_llm.kernels.decoder_layers import DraftTables
from blade_llm.kernels.paged_attention import RaggedBatch, most_split_queries
from blade_llm.layers.step import HiddenStates, KVCache
from blade_llm.models.decoder import Decoder
from blade_llm.models.heads.head import UNLISTED, Head
from blade_llm.models.model import Model
from blade_llm.runner.device import TORCH_DTYPES
from blade_llm.runner.draft_config import DraftModelConfig
from blade_llm.runner.draft_inputs import DraftInputs, send_draft_inputs
from blade_llm.runner.forward_pass import ForwardPass
from blade_llm.runner.graphs.decode import GraphBackend
from blade_llm.runner.graphs.sets import StepGraphs, create_graphs
from blade_llm.runner.kv_cache import allocate_kv_cache, allocate_states, rows_of
from blade_llm.runner.kv_quant import warn_of_kv_quant
from blade_llm.runner.tables import SlotTables
from blade_llm.sampling.masks import DraftMasks
from blade_llm.sampling.parameters import INVALID_TOKEN
from blade_llm.sampling.sampler import SampledSlots, Sampler
from blade_llm.scheduling.plan import StepPlan
from blade_llm.weights.loader import load_model
from blade_llm.weights.packed_cache.folder import packed_cache

if TYPE_CHECKING:
    from blade_llm.kernels.decoder_layers.draft import NativeDraft


_MOST_SEQS, _TOKENS = 64, (16, 32, 64, 128, 512, 1024, 2048)
"""Sequences of the largest graph of drafting, and tokens of those of what comes before."""


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """A loaded draft model or head."""

    config: DraftModelConfig
    model: Model

    def allocate_states(self, num_blocks: int, device: torch.device) -> HiddenStates | None:
        """Where a head finds the hidden states of the target; None: a draft model needs none."""
        if not isinstance(self.model, Head):
            return None
        dtype = TORCH_DTYPES[self.config.dtype]
        size = self.config.model.hidden_size
        return self.model.states(allocate_states(size, num_blocks, BLOCK_SIZE, device, dtype))


def load_draft(
    draft: DraftModelConfig, config: EngineConfig, device: torch.device, max_positions: int, target: Model
) -> DraftWeights:
    """Load what drafts for ``target``. ``max_positions``: of the target."""
    if config.speculative is not None:
        warn_of_kv_quant(draft.model, config.speculative.draft_kv_cache_quant, "draft.")
    model = load_model(
        draft.folder,
        draft.model,
        load_format=config.load_format,
        max_positions=min(max_positions, draft.model.max_position_embeddings),
        device=device,
        dtype=TORCH_DTYPES[draft.dtype],
        quant="none",
        deterministic=config.deterministic,
        packed_cache=packed_cache(config.packed_cache_dir, config.packed_cache_bytes),
        wrap=None,
        target=target,
        group=target.group if isinstance(target, Decoder) and draft.model.is_head else None,
    )
    return DraftWeights(draft, model)


def _few_graphs(config: EngineConfig) -> EngineConfig:
    """The same with graphs of what drafts in small batches compute (in large ones there are none), and of prompts."""
    most = config.max_batch_tokens if config.cuda_graph_max_tokens is None else config.cuda_graph_max_tokens
    return msgspec.structs.replace(
        config,
        cuda_graph_batch_sizes=None,
        cuda_graph_max_batch_size=min(config.cuda_graph_max_batch_size or _MOST_SEQS, _MOST_SEQS),
        cuda_graph_token_sizes=tuple(size for size in _TOKENS if size <= most) or None,
        cuda_graph_max_tokens=min(most, _TOKENS[0]),
    )


class DraftRunner:
    """Runs the draft model of a target.

    Attributes:
        max_positions: the longest sequence for which it drafts.
        nbytes: its weights, its KV cache and the hidden states that are kept for it.
        shift: 1 of a head, which computes each position with the token after it; else 0.
    """

    def __init__(
        self,
        weights: DraftWeights,
        tables: SlotTables,
        sampler: Sampler,
        *,
        num_blocks: int,
        vocab_size: int,
        config: EngineConfig,
        states: HiddenStates | None = None,
        graphs: GraphBackend | None = None,
    ) -> None:
        """``tables``, ``sampler``, ``vocab_size``: the target's, of ``num_blocks`` KV blocks; ``states``: the target's
        hidden states, for a head; ``graphs``: records CUDA graphs, None: all is launched kernel by kernel."""
        self._vocab_size = vocab_size
        self._states = states
        self.shift = 0 if states is None else 1
        model_config = weights.config.model
        self._model = weights.model
        self._tables = tables
        self._sampler = sampler
        device = tables.token_ids.device
        kv_cache = allocate_kv_cache(
            model_config.kv, num_blocks, BLOCK_SIZE, device, TORCH_DTYPES[weights.config.dtype]
        )
        torch_attention = config.attn_cls == "paged" and device.type == "cuda"
        smaller = model_config.vocab_size < vocab_size
        self._forward = ForwardPass(
            model_config,
            kv_cache,
            tables,
            config.deterministic,
            torch_attention,
            smaller_vocabulary=smaller,
            states=states,
            kv_rows=rows_of(model_config.kv, TORCH_DTYPES[weights.config.dtype]),
        )
        self._native: NativeDraft | None = None
        """All steps in one call; None: they are computed one by one."""
        if isinstance(self._model, Decoder | Head) and weights.config.dtype == "bfloat16" and device.type == "cpu":
            self._native = self._model.native_draft(vocab_size, config.deterministic)
        self.graphs: StepGraphs | None = None
        self._most_split_queries = 1
        if graphs is not None:
            rows = self._forward.kv_rows
            self._most_split_queries = most_split_queries(kv_cache[0][0], model_config.num_heads, rows)
            self._one_each = torch.arange(config.max_num_seqs + 1, device=device)
            where = tables.padding_slot, device
            self.graphs = create_graphs(_few_graphs(config), graphs, self._decode, self._mixed, *where, " of drafts")
        self.max_positions = min(model_config.max_position_embeddings, tables.token_ids.shape[1] - 1)
        self.nbytes = weights.model.nbytes + sum(each.nbytes for layer in kv_cache for each in layer)
        if states is not None:
            self.nbytes += states.cache.nbytes

    @property
    def kv_cache(self) -> KVCache:
        """Its own, of as many blocks as the target's."""
        return self._forward.kv_cache

    def launch(self, plan: StepPlan, masks: DraftMasks | None = None) -> Tensor:
        """Compute the plan's draft chunks, and write the draft tokens of the step into the slot tables.

        ``masks``: of requests with a grammar, for which each token goes to the host before the next is sampled.
        Returns whether the logits are no numbers, [] bool.
        """
        mixed = None if self.graphs is None else self.graphs.mixed
        inputs = send_draft_inputs(plan, self._tables.token_ids.device, mixed, self._most_split_queries)
        if mixed is not None and inputs.replayed is not None:
            hidden = mixed.compute(*inputs.replayed)[: len(inputs.selected)]
        else:
            hidden = self._forward(self._model, inputs.batch, inputs.starts, inputs.num_tokens, inputs.selected)
        if not inputs.counts:
            return torch.zeros((), dtype=torch.bool, device=hidden.device)
        slots, host_slots = inputs.batch.slots, inputs.drafting_slots
        native = None if masks is not None else self._native
        if native is not None and (sampling := self._sampler.draft_sampling(host_slots, slots)) is not None:
            forward = self._forward
            tables = DraftTables(
                self._tables.token_ids, self._tables.block_table, BLOCK_SIZE, forward.kv_cache, forward.kv_rows
            )
            broken = native(hidden, inputs.counts, slots, inputs.batch.seq_lens, sampling, tables)
            return torch.tensor(broken > 0)
        return self._one_by_one(hidden, inputs, masks)

    def _one_by_one(self, hidden: Tensor, inputs: DraftInputs, masks: DraftMasks | None) -> Tensor:
        """Sample a token of each sequence, compute it, and so on; whether any logits are no numbers.

        ``hidden``: of the sequences' last tokens.
        """
        slots, ends, lengths = inputs.batch.slots, inputs.batch.seq_lens, inputs.batch.host_seq_lens
        invalid = torch.zeros((), dtype=torch.bool, device=slots.device)
        one_each = torch.arange(inputs.counts[0] + 1, device=slots.device)
        allowed = None if masks is None else masks.first(inputs.drafting_slots)
        for step, count in enumerate(inputs.counts):
            at = ends[:count] + step
            positions = [length + step for length in lengths[:count]]
            if step and self.graphs is not None and self.graphs.decodes.size_for(count) is not None:
                hidden = self.graphs.decodes.decode(slots[:count], at - 1)
            elif step:
                batch = RaggedBatch(slots[:count], one_each[: count + 1], at, [1] * count, positions)
                hidden = self._forward(self._model, batch, at - 1, count)
            after = inputs.counts[step + 1] if step + 1 < len(inputs.counts) else 0
            if self._states is not None and after:
                self._go_on(self._states, hidden[:after], slots[:after], at[:after])
            sampled_at = [position + self.shift for position in positions]
            rows = SampledSlots(inputs.drafting_slots[:count], sampled_at, slots[:count], at + self.shift)
            sampled = self._sampler.sample(self._logits(hidden[:count]), rows, allowed)
            if sampled.reported is not None:
                invalid |= (sampled.reported == INVALID_TOKEN).any()
            self._tables.token_ids[rows.slot_index, rows.position_index] = sampled.tokens.to(torch.int32)
            if masks is not None and after:
                allowed = masks.after(sampled.tokens[:after].tolist(), after)
        return invalid

    def _go_on(self, states: HiddenStates, hidden: Tensor, slots: Tensor, positions: Tensor) -> None:
        """Put a head's own states where it looks for those of ``positions``, until the target computes these."""
        blocks = self._tables.block_table[slots, positions // BLOCK_SIZE].long()
        states.cache.index_copy_(0, blocks * BLOCK_SIZE + positions % BLOCK_SIZE, hidden)

    def _decode(self, slots: Tensor, starts: Tensor) -> Tensor:
        """A token of each slot, by device memory alone."""
        count, longest = len(slots), self._tables.token_ids.shape[1] - 1
        batch = RaggedBatch(slots, self._one_each[: count + 1], starts + 1, [1] * count, [longest] * count)
        return self._forward(self._model, batch, starts, count)

    def _mixed(self, batch: RaggedBatch, starts: Tensor, num_tokens: int, selected: Tensor) -> Tensor:
        return self._forward(self._model, batch, starts, num_tokens, selected)

    def _logits(self, hidden: Tensor) -> Tensor:
        """Logits over the target's vocabulary, which may be padded to another size."""
        logits = self._model.logits(hidden)
        size = self._vocab_size
        if logits.shape[1] > size:
            return logits[:, :size].contiguous()
        if logits.shape[1] < size:
            return torch.nn.functional.pad(logits, (0, size - logits.shape[1]), value=UNLISTED)
        return logits
