"""All tokens that a draft model proposes, in one call of C++ (``draft.h``): forward passes and sampling by turns."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from blade_llm.kernels.decoder_layers.draft_inputs import DraftSampling, DraftTables
from blade_llm.kernels.decoder_layers.native import NativeDecoder, cache_pointers
from blade_llm.kernels.linear.native import NativeLinear
from blade_llm.kernels.native.functions import bind
from blade_llm.kernels.paged_attention import RaggedBatch
from blade_llm.kernels.paged_attention.native import Prepared, prepare

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64


class _Head(ctypes.Structure):
    """``Head`` in draft.h."""

    _fields_ = (
        *((name, _POINTER) for name in ("embedding_norm", "state_norm", "projection", "tokens")),
        *((name, _SIZE) for name in ("states_first", "passes_normalised", "normalised_residual")),
    )


class _Model(ctypes.Structure):
    """``DraftModel`` in draft.h."""

    _fields_ = (
        ("decoder", _POINTER),
        ("layers", _SIZE),
        *((name, _POINTER) for name in ("embedding", "norm", "norm_bias", "head")),
        *((name, _SIZE) for name in ("outputs", "vocabulary")),
        *((name, _POINTER) for name in ("cosines", "sines")),
        ("angles", _SIZE),
        ("joins", _POINTER),
    )


class _Draft(ctypes.Structure):
    """``Draft`` in draft.h."""

    _fields_ = (
        ("steps", _SIZE),
        *((name, _POINTER) for name in ("counts", "slots", "positions", "lengths", "tokens")),
        ("tokens_stride", _SIZE),
        ("block_table", _POINTER),
        *((name, _SIZE) for name in ("block_table_stride", "block_size")),
        *((name, _POINTER) for name in ("attention", "caches", "temperatures", "top_p", "top_k", "keys")),
        *((name, _SIZE) for name in ("random", "filtered")),
        *((name, _POINTER) for name in ("hidden", "x", "residual", "normed", "projected", "gathered", "mixture")),
        *(
            (name, _POINTER)
            for name in ("joined", "slot_mapping", "cosines", "sines", "logits", "scaled", "thresholds")
        ),
        *((name, _POINTER) for name in ("likeliest", "sampled")),
    )


@dataclass(frozen=True, slots=True)
class Join:
    """What a head that drafts from hidden states has beside its one layer."""

    embedding_norm: Tensor | None
    """[hidden] bf16; None: the layer's first norm."""
    state_norm: Tensor
    projection: NativeLinear | None
    """Of embedding and state into the layer's input; None: they are its attention's, side by side."""
    tokens: Tensor | None
    """[own vocabulary] int64: the token of each logit; None: they are in order."""
    states_first: bool
    passes_normalised: bool
    normalised_residual: bool

    def struct(self) -> _Head:
        """As C++ takes it, which keeps no tensor alive."""
        return _Head(
            None if self.embedding_norm is None else self.embedding_norm.data_ptr(),
            self.state_norm.data_ptr(),
            None if self.projection is None else self.projection.address,
            None if self.tokens is None else self.tokens.data_ptr(),
            self.states_first,
            self.passes_normalised,
            self.normalised_residual,
        )


class NativeDraft:
    """A whole draft model or head, from a token to the next."""

    def __init__(
        self,
        decoder: NativeDecoder,
        *,
        embedding: Tensor,
        norm: Tensor,
        norm_bias: Tensor | None,
        head: NativeLinear,
        cosines: Tensor,
        sines: Tensor,
        vocabulary: int,
        deterministic: bool,
        joins: Join | None = None,
    ) -> None:
        """``embedding``: [vocabulary, hidden] bf16; ``norm``: [hidden] bf16, of the decoder's kind; ``cosines``,
        ``sines``: [positions, head_dim / 2] fp32; ``vocabulary``: tokens that may be sampled, at most the head's, but
        where ``joins``, of a head, says which these are."""
        lists_tokens = joins is not None and joins.tokens is not None
        joined = None if joins is None else joins.struct()
        self._kept = decoder, embedding, norm, norm_bias, head, cosines, sines, joins, joined  # for their addresses
        self._decoder, self._deterministic = decoder, deterministic
        self._outputs, self._vocabulary = head.outputs, vocabulary if lists_tokens else min(vocabulary, head.outputs)
        self._joined_width = 0 if joins is None else max(2 * len(norm), decoder.num_heads * 2 * cosines.shape[1])
        self._angles = cosines.shape[1]
        self._model = _Model(
            decoder.address,
            decoder.num_layers,
            embedding.data_ptr(),
            norm.data_ptr(),
            None if norm_bias is None else norm_bias.data_ptr(),
            head.address,
            self._outputs,
            self._vocabulary,
            cosines.data_ptr(),
            sines.data_ptr(),
            self._angles,
            None if joined is None else ctypes.addressof(joined),
        )

    def __call__(
        self,
        hidden: Tensor,
        counts: Sequence[int],
        slots: Tensor,
        lengths: Tensor,
        sampling: DraftSampling,
        tables: DraftTables,
    ) -> int:
        """Write each sequence's draft tokens into its slot of the tables.

        ``hidden``: [sequences, hidden] bf16, of their last tokens; is overwritten. ``counts``: how many sequences draft
        a first token, a second one and so on, each time those of before without some of the last. ``slots``,
        ``lengths``: [sequences] int64, the latter what is computed of each; are counted up. Returns how many logits
        were no numbers.
        """
        most = counts[0]
        positions = lengths + 1 if self._joined_width else lengths
        one_each = torch.arange(most + 1)
        attention = [self._attention(slots, one_each, lengths, count, tables) for count in counts[1:]]
        addresses = (_POINTER * len(counts))(None, *(each.address for each in attention))
        caches = cache_pointers(tables.kv_cache)
        of_steps = torch.tensor(counts)
        x, residual = torch.empty_like(hidden), torch.empty_like(hidden)
        layers = self._decoder.scratch(most)
        joined = torch.empty(most, self._joined_width, dtype=torch.bfloat16)
        slot_mapping = torch.empty(most, dtype=torch.int64)
        angles = torch.empty(2, most, self._angles)
        logits = torch.empty(most, self._outputs, dtype=torch.bfloat16)
        scaled = torch.empty(most if sampling.random else 0, self._vocabulary)
        thresholds = torch.empty(most)
        tokens = torch.empty(2, most, dtype=torch.int64)
        draft = _Draft(
            len(counts),
            of_steps.data_ptr(),
            slots.data_ptr(),
            positions.data_ptr(),
            lengths.data_ptr(),
            tables.token_ids.data_ptr(),
            tables.token_ids.stride(0),
            tables.block_table.data_ptr(),
            tables.block_table.stride(0),
            tables.block_size,
            ctypes.addressof(addresses),
            ctypes.addressof(caches),
            sampling.temperatures.data_ptr(),
            sampling.top_p.data_ptr(),
            sampling.top_k.data_ptr(),
            sampling.keys.data_ptr(),
            sampling.random,
            sampling.filtered,
            hidden.data_ptr(),
            x.data_ptr(),
            residual.data_ptr(),
            *(each.data_ptr() for each in layers),
            joined.data_ptr(),
            slot_mapping.data_ptr(),
            angles[0].data_ptr(),
            angles[1].data_ptr(),
            logits.data_ptr(),
            scaled.data_ptr(),
            thresholds.data_ptr(),
            tokens[0].data_ptr(),
            tokens[1].data_ptr(),
        )
        return int(_draft_tokens()(ctypes.addressof(self._model), ctypes.addressof(draft)))

    def _attention(self, slots: Tensor, one_each: Tensor, lengths: Tensor, count: int, tables: DraftTables) -> Prepared:
        """Of one token of each of the first ``count`` sequences, whose ``lengths`` the call counts up."""
        batch = RaggedBatch(slots[:count], one_each[: count + 1], lengths[:count], [1] * count, [1] * count)
        k_cache = tables.kv_cache[0][0]
        prepared = prepare(
            batch, tables.block_table, k_cache, self._decoder.num_heads, self._deterministic, tables.kv_rows
        )
        assert isinstance(prepared, Prepared)
        return prepared


@cache
def _draft_tokens() -> Any:
    return bind("draft_tokens", "pp", "n")
