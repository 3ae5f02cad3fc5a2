"""Sampling parameters of the live requests, one row each: on the device what the draw computes with, on the host what
decides which parts of the draw a step needs at all."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

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
GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would overflow, and the draw would be greedy anyway."""


GREEDY, RANDOM, FILTERED, PENALISED, MASKED, LOGPROBS = (1 << bit for bit in range(6))
"""What a request asks of the draw, as bits. Every one is either greedy or random; filtered (top-k, top-p, min-p) only
where it is random; masked while it may have tokens that cannot be drawn yet."""


@dataclass(frozen=True, slots=True)
class RowSampling:
    """One request's parameters, as the host sees them."""

    params: SamplingParams
    num_prompt_tokens: int
    masked_until_min_tokens: tuple[int, ...]

    @property
    def asks(self) -> int:
        """The stages of the draw it needs, as bits."""
        params = self.params
        asks = GREEDY if params.temperature < GREEDY_BELOW else RANDOM
        if asks == RANDOM and (params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0):
            asks |= FILTERED
        if params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty:
            asks |= PENALISED
        if params.min_tokens and self.masked_until_min_tokens:
            asks |= MASKED
        if params.logprobs is not None:
            asks |= LOGPROBS
        return asks

    def masked_at(self, position: int) -> tuple[int, ...]:
        """Token ids that may not be drawn at ``position``."""
        return self.masked_until_min_tokens if position - self.num_prompt_tokens < self.params.min_tokens else ()


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
        state = RowSampling(params, num_prompt_tokens, masked_until_min_tokens)
        self.rows[row] = state
        self.asks[row] = state.asks
        penalties = params.repetition_penalty, params.presence_penalty, params.frequency_penalty
        floats = _WORDS_OF_FLOATS.unpack(_FLOATS.pack(params.temperature, params.top_p, params.min_p, *penalties))
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
