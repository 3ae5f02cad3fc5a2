"""Sampling parameters of the live requests, one slot each: on the device what the sampler computes with, on the host
what decides which stages of sampling a step needs at all."""

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
from blade_llm.sampling.allowed import AllowedMasks
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.sampling.restrictions import BadWords, bad_words_of, forbidden_tokens
from blade_llm.sampling.transfer import to_device

WORDS: Final = 8
"""64-bit words that describe a request to the device: its slot, floats two by two, top-k, noise key, prompt length."""
_FLOATS: Final = struct.Struct("<6f")
_WORDS_OF_FLOATS: Final = struct.Struct("<3q")
_LEAST: Final = 1e-30
"""A smaller share would be 0 in 32 bits, or lose its digits. No token is sampled that is so unlikely, and the likeliest
has more than that, so that as top-p this keeps it alone."""
GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would overflow, and sampling would be greedy anyway."""


GREEDY, RANDOM, FILTERED, PENALISED, BIASED, LOGPROBS, ALLOWED, BAD_WORDS = (1 << bit for bit in range(8))
"""The stages of sampling that a request needs, as bits. Every request is either greedy or random; filtered (top-k,
top-p, min-p) only where it is random; biased where it has a logit bias, or bad words, or may have tokens that cannot be
sampled yet."""
RESTRICTED: Final = ALLOWED | BAD_WORDS
"""What may leave no token to sample."""


class Bias(NamedTuple):
    """Biases added to single logits of a slot: ``-inf`` forbids a token."""

    tokens: np.ndarray
    """[entries] int64, all different."""
    values: np.ndarray
    """[entries] fp64."""


def merged_bias(
    logit_bias: Mapping[int, float], forbidden: Iterable[int] = (), conditional: Iterable[int] = ()
) -> Bias | None:
    """Logit bias and forbidden tokens as one bias; None for none.

    ``conditional``: tokens that may be forbidden at some positions, all different; their entries come first.
    """
    entries = {**dict.fromkeys(conditional, 0.0), **logit_bias, **dict.fromkeys(forbidden, -inf)}
    if not entries:
        return None
    return Bias(np.array(list(entries), dtype=np.int64), np.array(list(entries.values()), dtype=np.float64))


@dataclass(frozen=True, slots=True)
class SlotSampling:
    """The sampling parameters of one request, on the host."""

    params: SamplingParams
    num_prompt_tokens: int
    bias: Bias | None
    """The logit bias of the request, and its bad words of one token."""
    early_bias: Bias | None
    """The same, and the tokens that must not come before there are ``min_tokens``."""
    bad_words: BadWords | None = None
    """Those of several tokens; the first entries of both biases are their last tokens."""

    @property
    def flags(self) -> int:
        """The stages of sampling it needs, as bits."""
        params = self.params
        flags = GREEDY if params.temperature < GREEDY_BELOW else RANDOM
        if flags == RANDOM and (params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0):
            flags |= FILTERED
        if params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty:
            flags |= PENALISED
        if self.bias is not None or (params.min_tokens and self.early_bias is not None):
            flags |= BIASED
        if params.logprobs is not None:
            flags |= LOGPROBS
        if params.allowed_token_ids is not None:
            flags |= ALLOWED
        if params.bad_words_token_ids:
            flags |= BAD_WORDS
        return flags

    def bias_at(self, position: int) -> Bias | None:
        """The bias of the token at ``position``."""
        return self.early_bias if position - self.num_prompt_tokens < self.params.min_tokens else self.bias


class SamplingTable:
    """The slots' sampling parameters, of which the device holds :data:`WORDS` 64-bit words each.

    Columns of :attr:`values`, fp32: see the constants.
    """

    TEMPERATURE, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY = range(6)
    PENALTIES = slice(REPETITION, FREQUENCY + 1)

    def __init__(self, max_num_seqs: int, device: torch.device) -> None:
        self.slots: list[SlotSampling | None] = [None] * max_num_seqs
        self.flags = np.zeros(max_num_seqs, dtype=np.uint8)
        """The stages of sampling that each slot needs."""
        self._words = torch.zeros(max_num_seqs, WORDS - 1, dtype=torch.int64, device=device)
        self.values = self._words[:, :3].view(torch.float32)
        """[slots, 6] fp32."""
        self.top_k = self._words[:, 3]
        """[slots] int64."""
        self.keys = self._words[:, 4:6]
        """[slots, 2] int64."""
        self.num_prompt_tokens = self._words[:, 6]
        """[slots] int64."""
        self.allowed = AllowedMasks(max_num_seqs, device)
        """The tokens that slots may sample which have ``allowed_token_ids``."""

    def record(
        self,
        slot: int,
        params: SamplingParams,
        *,
        num_prompt_tokens: int,
        sample_index: int = 0,
        masked_until_min_tokens: tuple[int, ...] = (),
    ) -> tuple[int, ...]:
        """Record a request in ``slot``, so far on the host alone. Returns the :data:`WORDS` words that
        :meth:`write_recorded` needs on the device. A missing seed counts as 0 (the owner of the request chooses one).
        """
        bad_words: BadWords | None = None
        forbidden: tuple[int, ...] = ()
        if params.bad_words_token_ids:
            bad_words = bad_words_of(params.bad_words_token_ids)
            forbidden = forbidden_tokens(params.bad_words_token_ids)
        conditional = () if bad_words is None else bad_words.last_tokens
        bias = early = merged_bias(params.logit_bias, forbidden, conditional)
        if masked_until_min_tokens:
            early = merged_bias(params.logit_bias, (*forbidden, *masked_until_min_tokens), conditional)
        self.allowed.record(slot, params.allowed_token_ids)
        state = SlotSampling(params, num_prompt_tokens, bias, early, bad_words)
        self.slots[slot] = state
        self.flags[slot] = state.flags
        penalties = params.repetition_penalty, params.presence_penalty, params.frequency_penalty
        top_p, min_p = max(params.top_p, _LEAST), params.min_p if params.min_p > _LEAST else 0.0
        floats = _WORDS_OF_FLOATS.unpack(_FLOATS.pack(params.temperature, top_p, min_p, *penalties))
        return (slot, *floats, max(params.top_k, 0), *noise_key(params.seed or 0, sample_index), num_prompt_tokens)

    def write_recorded(self, words: Tensor) -> None:
        """Write requests to the device: ``words`` holds what :meth:`record` returned for each, int64, one after
        another."""
        records = words.view(-1, WORDS)
        self._words.index_copy_(0, records[:, 0], records[:, 1:])

    def write(self, slot: int, params: SamplingParams, **details: Any) -> None:
        """Write a single request to ``slot``, on host and device; ``details`` as in :meth:`record`."""
        self.write_recorded(to_device(self.record(slot, params, **details), self._words.device))

    def free(self, slot: int) -> None:
        """Forget the request in ``slot``, which has ended."""
        self.slots[slot] = None
        self.flags[slot] = 0

    def __getitem__(self, slot: int) -> SlotSampling:
        state = self.slots[slot]
        assert state is not None, f"slot {slot} is sampled but holds no request"
        return state
