"""Sampling parameters of the live requests, one row each: on the device what the draw computes with, on the host what
decides which parts of the draw a step needs at all."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from blade_llm.kernels.gumbel_argmax import noise_key
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.sampling.transfer import to_device

WORDS: Final = 8
"""64-bit words that describe a request to the device: its row, floats two by two, top-k, noise key, prompt length."""
_FLOATS: Final = struct.Struct("<6f")
_WORDS_OF_FLOATS: Final = struct.Struct("<3q")
_LEAST: Final = 1e-30
"""A smaller share would be 0 in 32 bits, or lose its digits. No token is drawn that is so unlikely, and the likeliest
has more than that, so that as top-p this keeps it alone."""
GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would overflow, and the draw would be greedy anyway."""


GREEDY, RANDOM, FILTERED, PENALISED, BIASED, LOGPROBS = (1 << bit for bit in range(6))
"""What a request asks of the draw, as bits. Every one is either greedy or random; filtered (top-k, top-p, min-p) only
where it is random; biased where it has a logit bias, or may have tokens that cannot be drawn yet."""


class Bias(NamedTuple):
    """What is added to single logits of a row: ``-inf`` forbids a token."""

    tokens: np.ndarray
    """[entries] int64, all different."""
    values: np.ndarray
    """[entries] fp64."""


def merged_bias(logit_bias: Mapping[int, float], forbidden: Iterable[int] = ()) -> Bias | None:
    """Both as one; None for nothing."""
    entries = {**logit_bias, **dict.fromkeys(forbidden, -inf)}
    if not entries:
        return None
    return Bias(np.array(list(entries), dtype=np.int64), np.array(list(entries.values()), dtype=np.float64))


@dataclass(frozen=True, slots=True)
class RowSampling:
    """One request's parameters, as the host sees them."""

    params: SamplingParams
    num_prompt_tokens: int
    bias: Bias | None
    """Of its logit bias."""
    early_bias: Bias | None
    """The same, and the tokens that must not come before there are ``min_tokens``."""

    @property
    def asks(self) -> int:
        """The stages of the draw it needs, as bits."""
        params = self.params
        asks = GREEDY if params.temperature < GREEDY_BELOW else RANDOM
        if asks == RANDOM and (params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0):
            asks |= FILTERED
        if params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty:
            asks |= PENALISED
        if self.bias is not None or (params.min_tokens and self.early_bias is not None):
            asks |= BIASED
        if params.logprobs is not None:
            asks |= LOGPROBS
        return asks

    def bias_at(self, position: int) -> Bias | None:
        """What is added to its logits for the token at ``position``."""
        return self.early_bias if position - self.num_prompt_tokens < self.params.min_tokens else self.bias


class SamplingTable:
    """The rows' sampling parameters, of which the device holds :data:`WORDS` 64-bit words each.

    Columns of :attr:`values`, fp32: see the constants.
    """

    TEMPERATURE, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY = range(6)
    PENALTIES = slice(REPETITION, FREQUENCY + 1)

    def __init__(self, max_num_seqs: int, device: torch.device) -> None:
        self.rows: list[RowSampling | None] = [None] * max_num_seqs
        self.asks = np.zeros(max_num_seqs, dtype=np.uint8)
        """What each row asks of the draw."""
        self._words = torch.zeros(max_num_seqs, WORDS - 1, dtype=torch.int64, device=device)
        self.values = self._words[:, :3].view(torch.float32)
        """[rows, 6] fp32."""
        self.top_k = self._words[:, 3]
        """[rows] int64."""
        self.keys = self._words[:, 4:6]
        """[rows, 2] int64."""
        self.num_prompt_tokens = self._words[:, 6]
        """[rows] int64."""

    def record(
        self,
        row: int,
        params: SamplingParams,
        *,
        num_prompt_tokens: int,
        sample_index: int = 0,
        masked_until_min_tokens: tuple[int, ...] = (),
    ) -> tuple[int, ...]:
        """A request enters ``row``, so far on the host alone. Returns the :data:`WORDS` words that
        :meth:`enter_recorded` wants on the device. A missing seed counts as 0 (whoever accepts requests chooses one).
        """
        bias = merged_bias(params.logit_bias)
        early = merged_bias(params.logit_bias, masked_until_min_tokens) if masked_until_min_tokens else bias
        state = RowSampling(params, num_prompt_tokens, bias, early)
        self.rows[row] = state
        self.asks[row] = state.asks
        penalties = params.repetition_penalty, params.presence_penalty, params.frequency_penalty
        top_p, min_p = max(params.top_p, _LEAST), params.min_p if params.min_p > _LEAST else 0.0
        floats = _WORDS_OF_FLOATS.unpack(_FLOATS.pack(params.temperature, top_p, min_p, *penalties))
        return (row, *floats, max(params.top_k, 0), *noise_key(params.seed or 0, sample_index), num_prompt_tokens)

    def enter_recorded(self, words: Tensor) -> None:
        """Enter requests on the device: ``words`` holds what :meth:`record` returned for each, int64, one after
        another."""
        records = words.view(-1, WORDS)
        self._words.index_copy_(0, records[:, 0], records[:, 1:])

    def enter(self, row: int, params: SamplingParams, **details: Any) -> None:
        """A single request enters ``row``, on host and device; ``details`` as in :meth:`record`."""
        self.enter_recorded(to_device(self.record(row, params, **details), self._words.device))

    def leave(self, row: int) -> None:
        """The request in ``row`` ended."""
        self.rows[row] = None
        self.asks[row] = 0

    def __getitem__(self, row: int) -> RowSampling:
        state = self.rows[row]
        assert state is not None, f"row {row} is sampled but holds no request"
        return state
