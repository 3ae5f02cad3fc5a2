"""The draw: from the logits of a step's sampled rows to tokens, all of it on the device.

Each stage runs only when some row asks for it; a batch of plain greedy requests is one argmax. Order: repetition,
frequency and presence penalties, logit bias with the tokens that ``min_tokens`` forbids, mask of the grammar,
temperature, top-k, top-p, min-p, draw. Nothing here waits for the device: which stages run, and over which rows, the
host knows by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blade_llm.kernels.argmax import argmax, masked_argmax
from blade_llm.kernels.gumbel_argmax import gumbel_argmax
from blade_llm.kernels.penalties import apply_penalties
from blade_llm.kernels.top_k_top_p import top_k_top_p_thresholds
from blade_llm.sampling.masks import TokenMasks, mask_words
from blade_llm.sampling.stages import SampledRows, Stages, stages_of
from blade_llm.sampling.table import SamplingTable

__all__ = ["Drawn", "DrawnLogprobs", "SampledRows", "Sampler"]


@dataclass(frozen=True, slots=True)
class DrawnLogprobs:
    """Log-probabilities of the rows that asked, before penalties, temperature and filters."""

    indices: list[int]
    """Which of the sampled rows."""
    counts: list[int]
    """How many of the most likely tokens each wants."""
    chosen: Tensor
    """[asking] fp32."""
    top_values: Tensor
    """[asking, most wanted] fp32, best first."""
    top_tokens: Tensor
    """[asking, most wanted] int64."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A step's tokens, still on the device."""

    tokens: Tensor
    """[rows] int64."""
    logprobs: DrawnLogprobs | None


class Sampler:
    """Draws tokens by the parameters in a :class:`SamplingTable`."""

    def __init__(self, table: SamplingTable, token_ids: Tensor) -> None:
        """``token_ids``: [rows, max_model_len + 1] int32, the live requests' tokens, for the penalties."""
        self._table = table
        self._token_ids = token_ids

    def draw(self, logits: Tensor, sampled: SampledRows, masks: TokenMasks | None = None) -> Drawn:
        """``logits``: [rows, vocabulary] of the model's type, contiguous, one for each of ``sampled``."""
        if masks is not None:
            expected = len(masks.indices), mask_words(logits.shape[1])
            assert masks.words.shape == expected, f"masks are {masks.words.shape}, the model wants {expected}"
        stages = stages_of(sampled, self._table, logits.device, masks)
        raw = None if stages.asking is None else logits.index_select(0, stages.asking).float().log_softmax(-1)
        tokens = self._tokens(logits, sampled, stages)
        if raw is None or stages.asking is None:
            return Drawn(tokens, None)
        counts = [self._table[sampled.rows[i]].params.logprobs or 0 for i in stages.asking_indices]
        chosen = raw.gather(1, tokens.index_select(0, stages.asking).unsqueeze(1)).squeeze(1)
        best = raw.topk(min(max(counts), raw.shape[1]))
        return Drawn(tokens, DrawnLogprobs(stages.asking_indices, counts, chosen, best.values, best.indices))

    def changed(self, logits: Tensor, sampled: SampledRows, stages: Stages) -> Tensor:
        """Logits after penalties, bias and masks, fp32; the input itself when no row has any."""
        if not stages.penalised and stages.bias is None and stages.masks is None:
            return logits
        table, rows = self._table, sampled.row_index
        return apply_penalties(
            logits,
            self._token_ids,
            rows,
            table.num_prompt_tokens.index_select(0, rows),
            sampled.position_index,
            table.values.index_select(0, rows)[:, table.PENALTIES],
            stages.bias,
            stages.masks,
        )

    def filtered(self, logits: Tensor, rows: Tensor, stages: Stages) -> tuple[Tensor, Tensor]:
        """Logits of rows that draw at random, divided by the temperature, and each row's smallest that may be drawn.

        ``rows``: [rows] int64, of the table. Returns [rows, vocabulary] and [rows], fp32.
        """
        table = self._table
        values = table.values.index_select(0, rows)
        scaled = logits / values[:, table.TEMPERATURE].unsqueeze(1)  # fp32, whatever the logits are
        if not stages.filtered:
            return scaled, torch.full_like(values[:, 0], float("-inf"))
        top_k = table.top_k.index_select(0, rows)
        return scaled, top_k_top_p_thresholds(scaled, top_k, values[:, table.TOP_P], values[:, table.MIN_P])

    def _tokens(self, logits: Tensor, sampled: SampledRows, stages: Stages) -> Tensor:
        if stages.masks is not None and not (stages.random or stages.penalised or stages.bias is not None):
            likeliest = masked_argmax(logits, stages.masks)
            if likeliest is not None:
                return likeliest
        logits = self.changed(logits, sampled, stages)
        likeliest = argmax(logits) if stages.greedy else None
        if not stages.random:
            assert likeliest is not None
            return likeliest
        rows, positions, among = sampled.row_index, sampled.position_index, stages.drawing
        if among is not None:
            rows, positions = rows.index_select(0, among), positions.index_select(0, among)
            logits = logits.index_select(0, among)
        scaled, thresholds = self.filtered(logits, rows, stages)
        drawn = gumbel_argmax(scaled, thresholds, self._table.keys.index_select(0, rows), positions)
        if likeliest is None or among is None:
            return drawn
        return likeliest.index_copy_(0, among, drawn)
