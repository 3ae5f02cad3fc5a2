"""Sampling parameters of the live requests, one row each: on the device what the draw computes with, on the host what
decides which parts of the draw a step needs at all."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from blade_llm.kernels.gumbel_argmax import noise_key
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.sampling.transfer import to_device

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would overflow, and the draw would be greedy anyway."""


@dataclass(frozen=True, slots=True)
class RowSampling:
    """One request's parameters, as the host sees them."""

    params: SamplingParams
    num_prompt_tokens: int
    masked_until_min_tokens: tuple[int, ...]

    @property
    def greedy(self) -> bool:
        return self.params.temperature < GREEDY_BELOW

    @property
    def penalised(self) -> bool:
        params = self.params
        return bool(params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty)

    def masked_at(self, position: int) -> tuple[int, ...]:
        """Token ids that may not be drawn at ``position``."""
        return self.masked_until_min_tokens if position - self.num_prompt_tokens < self.params.min_tokens else ()


class SamplingTable:
    """The rows' sampling parameters. Columns of :attr:`values`, fp32: see the constants."""

    TEMPERATURE, TOP_P, REPETITION, PRESENCE, FREQUENCY = range(5)

    def __init__(self, max_num_seqs: int, device: torch.device) -> None:
        self.rows: list[RowSampling | None] = [None] * max_num_seqs
        self.values = torch.zeros(max_num_seqs, 5, device=device)
        self.top_k = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self.keys = torch.zeros(max_num_seqs, 2, dtype=torch.int64, device=device)
        self.num_prompt_tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)

    def enter(
        self,
        row: int,
        params: SamplingParams,
        *,
        num_prompt_tokens: int,
        sample_index: int = 0,
        masked_until_min_tokens: tuple[int, ...] = (),
    ) -> None:
        """A request enters ``row``. A missing seed counts as 0 (whoever accepts requests chooses one)."""
        state = RowSampling(params, num_prompt_tokens, masked_until_min_tokens)
        self.rows[row] = state
        if state.penalised:
            self.num_prompt_tokens[row] = num_prompt_tokens
        if state.penalised or not state.greedy:
            penalties = params.repetition_penalty, params.presence_penalty, params.frequency_penalty
            columns = (params.temperature, params.top_p, *penalties)
            self.values[row] = to_device(columns, self.values.device, torch.float32)
        if not state.greedy:
            self.top_k[row] = max(params.top_k, 0)
            self.keys[row] = to_device(noise_key(params.seed or 0, sample_index), self.keys.device)

    def leave(self, row: int) -> None:
        """The request in ``row`` ended."""
        self.rows[row] = None

    def __getitem__(self, row: int) -> RowSampling:
        state = self.rows[row]
        assert state is not None, f"row {row} is sampled but holds no request"
        return state
