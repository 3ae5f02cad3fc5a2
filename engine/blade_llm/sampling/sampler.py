"""The draw: from the logits of a step's sampled rows to tokens, all of it on the device.

Each stage runs only over the rows that ask for it; a batch of plain greedy requests is one argmax. Order: repetition,
frequency and presence penalties, masked tokens, temperature, top-k, top-p, draw.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blade_llm.kernels.gumbel_argmax import gumbel_argmax
from blade_llm.sampling.filters import top_k_thresholds, top_p_thresholds
from blade_llm.sampling.penalties import apply_penalties
from blade_llm.sampling.table import SamplingTable
from blade_llm.sampling.transfer import to_device


@dataclass(frozen=True, slots=True)
class SampledRows:
    """Which rows draw, and the position each draws for; the same on the host and on the device."""

    rows: list[int]
    positions: list[int]
    row_index: Tensor
    """[rows] int64."""
    position_index: Tensor
    """[rows] int64."""


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
        """``token_ids``: [max_num_seqs, max_model_len + 1], the live requests' tokens, for the penalties."""
        self._table = table
        self._token_ids = token_ids

    def draw(self, logits: Tensor, sampled: SampledRows) -> Drawn:
        """``logits``: [rows, vocabulary] of the model's type, one for each of ``sampled``."""
        states = [self._table[row] for row in sampled.rows]
        asking = [i for i, state in enumerate(states) if state.params.logprobs is not None]
        raw = logits[to_device(asking, logits.device)].float().log_softmax(-1) if asking else None

        logits = self._penalised(logits, sampled)
        tokens = self._drawn(logits, sampled)
        if raw is None:
            return Drawn(tokens, None)
        counts = [states[i].params.logprobs or 0 for i in asking]
        chosen = raw.gather(1, tokens[to_device(asking, logits.device)].unsqueeze(1)).squeeze(1)
        best = raw.topk(min(max(counts), raw.shape[1]))
        return Drawn(tokens, DrawnLogprobs(asking, counts, chosen, best.values, best.indices))

    def _penalised(self, logits: Tensor, sampled: SampledRows) -> Tensor:
        """Logits after penalties and masks; the input itself when no row asks for any."""
        table, device = self._table, logits.device
        penalised = [i for i, row in enumerate(sampled.rows) if table[row].penalised]
        masked = [
            (i, token)
            for i, (row, position) in enumerate(zip(sampled.rows, sampled.positions, strict=True))
            for token in table[row].masked_at(position)
        ]
        if not penalised and not masked:
            return logits
        logits = logits.to(torch.float32, copy=True)
        if penalised:
            among = to_device(penalised, device)
            rows, lengths = sampled.row_index[among], sampled.position_index[among]
            longest = max(sampled.positions[i] for i in penalised)
            values = table.values[rows]
            logits[among] = apply_penalties(
                logits[among],
                self._token_ids[rows, :longest].long(),
                table.num_prompt_tokens[rows],
                lengths,
                repetition=values[:, table.REPETITION],
                presence=values[:, table.PRESENCE],
                frequency=values[:, table.FREQUENCY],
            )
        if masked:
            where = to_device([i for i, _ in masked], device), to_device([token for _, token in masked], device)
            logits[where] = float("-inf")
        return logits

    def _drawn(self, logits: Tensor, sampled: SampledRows) -> Tensor:
        table = self._table
        random = [i for i, row in enumerate(sampled.rows) if not table[row].greedy]
        if not random:
            return logits.max(-1).indices  # the lowest of equals, and several times faster than argmax on CPU
        every = len(random) == len(sampled.rows)
        among = to_device(random, logits.device)
        rows = sampled.row_index if every else sampled.row_index[among]
        positions = sampled.position_index if every else sampled.position_index[among]
        scaled = (logits if every else logits[among]).float() / table.values[rows, table.TEMPERATURE].unsqueeze(1)
        thresholds = self.thresholds(scaled, [sampled.rows[i] for i in random], rows)
        drawn = gumbel_argmax(scaled, thresholds, table.keys[rows], positions)
        if every:
            return drawn
        tokens = logits.max(-1).indices
        tokens[among] = drawn
        return tokens

    def thresholds(self, scaled: Tensor, rows: list[int], row_index: Tensor) -> Tensor:
        """Each row's smallest logit that top-k and top-p let through; ``-inf`` where neither is on.

        ``scaled``: [rows, vocabulary] fp32, after the temperature; ``rows`` and ``row_index`` ([rows]) say the same.
        """
        table, device = self._table, scaled.device
        thresholds = torch.full((len(rows),), float("-inf"), device=device)
        vocabulary = scaled.shape[1]
        params = [table[row].params for row in rows]
        limited = [i for i, p in enumerate(params) if 0 < p.top_k < vocabulary]
        if limited:
            among = to_device(limited, device)
            largest = max(params[i].top_k for i in limited)
            thresholds[among] = top_k_thresholds(scaled[among], table.top_k[row_index[among]], largest)
        nucleus = [i for i, p in enumerate(params) if p.top_p < 1.0]
        if nucleus:
            among = to_device(nucleus, device)
            top_p = table.values[row_index[among], table.TOP_P]
            thresholds[among] = top_p_thresholds(scaled[among], top_p, thresholds[among])
        return thresholds
