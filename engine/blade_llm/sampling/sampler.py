"""The sampler: from the logits of a step's sampled slots to tokens, all of it on the device.

Each stage runs only when some slot needs it; a batch of plain greedy requests is one argmax. Order: repetition,
frequency and presence penalties, logit bias with the tokens that ``min_tokens`` and bad words forbid, mask of the
grammar or of the allowed tokens, temperature, top-k, top-p, min-p, Gumbel noise. Nothing here waits for the device:
which stages run, and over which slots, the host knows by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from torch import Tensor

from blade_llm.kernels.argmax import argmax, masked_argmax
from blade_llm.kernels.decoder_layers import DraftSampling
from blade_llm.kernels.gumbel_argmax import gumbel_argmax
from blade_llm.kernels.mark_invalid import mark_invalid
from blade_llm.kernels.penalties import apply_penalties
from blade_llm.kernels.top_k_top_p import top_k_top_p_thresholds
from blade_llm.sampling.bad_words import forbid_completion
from blade_llm.sampling.masks import TokenMasks, mask_words
from blade_llm.sampling.parameters import NO_TOKEN
from blade_llm.sampling.stages import SampledSlots, Stages, stages_of
from blade_llm.sampling.table import (
    BIASED,
    FILTERED,
    GREEDY,
    GREEDY_BELOW,
    LOGPROBS,
    PENALISED,
    RANDOM,
    RESTRICTED,
    SamplingTable,
)

__all__ = ["SampledLogprobs", "SampledSlots", "Sampler", "SamplerOutput"]


@dataclass(frozen=True, slots=True)
class SampledLogprobs:
    """Log-probabilities of the slots that want them, before penalties, temperature and filters."""

    indices: list[int]
    """Indices of these slots among the sampled ones."""
    counts: list[int]
    """The number of most likely tokens that each wants."""
    chosen: Tensor
    """[wanting] fp32."""
    top_values: Tensor
    """[wanting, most wanted] fp32, best first."""
    top_tokens: Tensor
    """[wanting, most wanted] int64."""


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """A step's tokens, still on the device."""

    tokens: Tensor
    """[rows] int64, all of them in the vocabulary, as the next step computes with them."""
    logprobs: SampledLogprobs | None
    reported: Tensor | None = None
    """[rows] int64: the same for the host, with :data:`~blade_llm.sampling.parameters.INVALID_TOKEN` where the logits
    are no numbers, and :data:`~blade_llm.sampling.parameters.NO_TOKEN` where nothing was left to sample. None: all are
    tokens."""


class Sampler:
    """Samples tokens by the parameters in a :class:`SamplingTable`."""

    def __init__(self, table: SamplingTable, token_ids: Tensor) -> None:
        """``token_ids``: [slots, max_model_len + 1] int32, the live requests' tokens, for the penalties."""
        self._table = table
        self._token_ids = token_ids

    def sample(
        self,
        logits: Tensor,
        sampled: SampledSlots,
        masks: TokenMasks | None = None,
        most_likely: int | None = None,
    ) -> SamplerOutput:
        """``logits``: [rows, vocabulary] of the model's type, contiguous, one for each of ``sampled``.

        ``most_likely``: how many of the most likely tokens to find where log-probabilities are wanted (which of equally
        likely ones are found depends on it); None: what the slot among ``sampled`` wants that wants most.
        """
        if masks is not None:
            expected = len(masks.indices), mask_words(logits.shape[1])
            assert masks.words.shape == expected, f"masks are {masks.words.shape}, the model wants {expected}"
        stages = stages_of(sampled, self._table, logits.device, masks, vocab_size=logits.shape[1])
        with_logprobs = stages.logprobs_index
        raw = None if with_logprobs is None else logits.index_select(0, with_logprobs).float().log_softmax(-1)
        tokens, exhausted = self._tokens(logits, sampled, stages)
        reported = mark_invalid(logits, tokens)
        if exhausted is not None:
            reported = reported.masked_fill(exhausted, NO_TOKEN)
        if raw is None or with_logprobs is None:
            return SamplerOutput(tokens, None, reported)
        counts = [self._table[sampled.slots[i]].params.logprobs or 0 for i in stages.logprobs_indices]
        chosen = raw.gather(1, tokens.index_select(0, with_logprobs).unsqueeze(1)).squeeze(1)
        best = raw.topk(min(max(counts) if most_likely is None else most_likely, raw.shape[1]))
        logprobs = SampledLogprobs(stages.logprobs_indices, counts, chosen, best.values, best.indices)
        return SamplerOutput(tokens, logprobs, reported)

    def takes_the_likeliest(self, slots: list[int]) -> bool:
        """Whether all of ``slots`` sample the likeliest token of the logits as they are, and want nothing else."""
        return bool((self._table.flags[slots] == GREEDY).all())

    def wanted_logprobs(self, slots: list[int]) -> dict[int, int]:
        """Indices among ``slots`` of those that want log-probabilities → of how many of the most likely tokens."""
        wanting = np.flatnonzero(self._table.flags[slots] & LOGPROBS).tolist()
        return {index: self._table[slots[index]].params.logprobs or 0 for index in wanting}

    def changed(self, logits: Tensor, sampled: SampledSlots, stages: Stages) -> Tensor:
        """Logits after penalties, bias and masks, fp32; the input itself when no slot has any."""
        if not stages.penalised and stages.bias is None and stages.masks is None:
            return logits
        table, slots = self._table, sampled.slot_index
        if stages.bias is not None and stages.bad_words is not None:
            of_rows = slots, sampled.position_index, table.num_prompt_tokens
            forbid_completion(stages.bias, stages.bad_words, self._token_ids, *of_rows)
        return apply_penalties(
            logits,
            self._token_ids,
            slots,
            table.num_prompt_tokens.index_select(0, slots),
            sampled.position_index,
            table.values.index_select(0, slots)[:, table.PENALTIES],
            stages.bias,
            stages.masks,
        )

    def filtered(self, logits: Tensor, slots: Tensor, stages: Stages) -> tuple[Tensor, Tensor]:
        """Logits of slots that sample at random, divided by the temperature, and each slot's smallest that may be
        sampled.

        ``slots``: [rows] int64, of the table. Returns [rows, vocabulary] and [rows], fp32.
        """
        table = self._table
        values = table.values.index_select(0, slots)
        scaled = logits / values[:, table.TEMPERATURE].unsqueeze(1)  # fp32, whatever the logits are
        if not stages.filtered:
            return scaled, torch.full_like(values[:, 0], float("-inf"))
        top_k = table.top_k.index_select(0, slots)
        return scaled, top_k_top_p_thresholds(scaled, top_k, values[:, table.TOP_P], values[:, table.MIN_P])

    def draft_sampling(self, slots: list[int], slot_index: Tensor) -> DraftSampling | None:
        """How slots sample, for a draft model; None where that takes more than temperature, top-k and top-p.

        ``slot_index``: the slots on the device, [at least as many] int64.
        """
        table = self._table
        union = int(np.bitwise_or.reduce(table.flags[slots]))
        if union & (PENALISED | BIASED | RESTRICTED):
            return None
        if union & FILTERED and any(table[slot].params.min_p > 0 for slot in slots):
            return None
        slot_index = slot_index[: len(slots)]
        values = table.values.index_select(0, slot_index).t().contiguous()
        temperatures = values[table.TEMPERATURE]
        temperatures.masked_fill_(temperatures < GREEDY_BELOW, 0.0)
        return DraftSampling(
            temperatures,
            values[table.TOP_P],
            table.top_k.index_select(0, slot_index),
            table.keys.index_select(0, slot_index),
            random=bool(union & RANDOM),
            filtered=bool(union & FILTERED),
        )

    def _tokens(self, logits: Tensor, sampled: SampledSlots, stages: Stages) -> tuple[Tensor, Tensor | None]:
        """The tokens, [rows] int64, and whether there was none left to sample, [rows] bool; None: there was for all."""
        if stages.masks is not None and not (stages.random or stages.penalised or stages.bias is not None):
            likeliest = masked_argmax(logits, stages.masks)
            if likeliest is not None:
                return likeliest, None  # of allowed tokens there is one at least
        logits = self.changed(logits, sampled, stages)
        tokens = self._tokens_of(logits, sampled, stages)
        if not stages.restricted:
            return tokens, None
        return tokens, logits.gather(1, tokens.unsqueeze(1)).squeeze(1) == -inf

    def _tokens_of(self, logits: Tensor, sampled: SampledSlots, stages: Stages) -> Tensor:
        """``logits``: after all changes."""
        likeliest = argmax(logits) if stages.greedy else None
        if not stages.random:
            assert likeliest is not None
            return likeliest
        slots, positions, among = sampled.slot_index, sampled.position_index, stages.random_index
        if among is not None:
            slots, positions = slots.index_select(0, among), positions.index_select(0, among)
            logits = logits.index_select(0, among)
        scaled, thresholds = self.filtered(logits, slots, stages)
        sampled_tokens = gumbel_argmax(scaled, thresholds, self._table.keys.index_select(0, slots), positions)
        if likeliest is None or among is None:
            return sampled_tokens
        return likeliest.index_copy_(0, among, sampled_tokens)
