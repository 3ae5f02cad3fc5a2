"""The stages of one sampling: which of them run at all, and over which slots. The host decides from its own copy of
the parameters; what the device has to know goes there in one transfer, and most steps need none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blade_llm.kernels.penalties import RowMasks, SparseBias
from blade_llm.sampling.bad_words import VECTORS, WordsOfRows, vectors_of_rows
from blade_llm.sampling.masks import TokenMasks
from blade_llm.sampling.table import (
    ALLOWED,
    BAD_WORDS,
    BIASED,
    FILTERED,
    GREEDY,
    LOGPROBS,
    PENALISED,
    RANDOM,
    RESTRICTED,
    SamplingTable,
)
from blade_llm.sampling.transfer import all_to_device, words_to_device


@dataclass(frozen=True, slots=True)
class SampledSlots:
    """The slots that sample, and the position each samples for; the same on the host and on the device."""

    slots: list[int]
    positions: list[int]
    slot_index: Tensor
    """[rows] int64."""
    position_index: Tensor
    """[rows] int64."""

    def of(self, rows: range) -> SampledSlots:
        """Those of a range of the rows."""
        part = slice(rows.start, rows.stop)
        return SampledSlots(self.slots[part], self.positions[part], self.slot_index[part], self.position_index[part])


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of one sampling. Indices are into the sampled slots."""

    penalised: bool
    """Whether some slot has a penalty."""
    bias: SparseBias | None
    """Biases added to single logits; None when there are none."""
    bad_words: WordsOfRows | None
    """Bad words of several tokens, whose last tokens have entries in :attr:`bias`; None for none."""
    masks: RowMasks | None
    """The tokens that slots with a grammar, or with allowed tokens, may sample; None when no slot has either."""
    restricted: bool
    """Whether some slot may have no token left to sample."""
    greedy: bool
    """Whether some slot takes the likeliest token."""
    random: bool
    """Whether some slot samples at random."""
    random_index: Tensor | None
    """[slots that sample at random] int64; None for all, or none."""
    filtered: bool
    """Whether some slot has top-k, top-p or min-p."""
    logprobs_index: Tensor | None
    """[slots that want log-probabilities] int64; None for none."""
    logprobs_indices: list[int]
    """The same slots, on the host."""


def stages_of(
    sampled: SampledSlots,
    table: SamplingTable,
    device: torch.device,
    masks: TokenMasks | None = None,
    *,
    vocab_size: int,
) -> Stages:
    """Decide which stages the sampling of ``sampled`` has. ``masks``: may be overwritten when this returns, on a GPU;
    on CPU they are read in place. A row with both one of these and allowed tokens has the mask, which has to hold
    both."""
    flags = table.flags[sampled.slots]
    assert flags.all(), "a slot is sampled but holds no request"
    union = int(np.bitwise_or.reduce(flags))
    vectors: list[np.ndarray] = []
    mixed = bool(union & GREEDY and union & RANDOM)
    if mixed:
        vectors.append(np.flatnonzero(flags & RANDOM))
    with_logprobs = np.flatnonzero(flags & LOGPROBS) if union & LOGPROBS else None
    if with_logprobs is not None:
        vectors.append(with_logprobs)
    guided = [] if masks is None else masks.indices
    allowed = [] if not union & ALLOWED else sorted({*np.flatnonzero(flags & ALLOWED).tolist()} - {*guided})
    if guided or allowed:
        vectors.append(_places([*guided, *allowed], len(flags)))
    if allowed:
        vectors.append(np.array([sampled.slots[row] for row in allowed], dtype=np.int64))
    bias = _bias(sampled, table, flags) if union & BIASED else None
    if bias is not None:
        vectors += bias
    words = _bad_words(sampled, table, flags, bias[0]) if union & BAD_WORDS and bias is not None else None
    if words is not None:
        vectors += words
    sent = iter(all_to_device(vectors, device) if vectors else [])
    sent_random = next(sent) if mixed else None
    sent_logprobs = next(sent) if with_logprobs is not None else None
    sent_masks: RowMasks | None = None
    if guided or allowed:
        places, of_rows = next(sent), []
        if masks is not None and guided:
            of_rows.append(words_to_device(masks.words, device))
        if allowed:
            of_slots = table.allowed.send([sampled.slots[row] for row in allowed], vocab_size)
            of_rows.append(of_slots.index_select(0, next(sent)))
        sent_masks = RowMasks(places, of_rows[0] if len(of_rows) == 1 else torch.cat(of_rows))
    sent_bias = SparseBias(next(sent), next(sent), next(sent)) if bias is not None else None
    sent_words = WordsOfRows(*(next(sent) for _ in range(VECTORS))) if words is not None else None
    return Stages(
        random_index=sent_random,
        logprobs_index=sent_logprobs,
        logprobs_indices=[] if with_logprobs is None else with_logprobs.tolist(),
        masks=sent_masks,
        bias=sent_bias,
        bad_words=sent_words,
        restricted=bool(union & RESTRICTED),
        penalised=bool(union & PENALISED),
        greedy=bool(union & GREEDY),
        random=bool(union & RANDOM),
        filtered=bool(union & FILTERED),
    )


def _places(indices: list[int], rows: int) -> np.ndarray:
    """The index of each row's mask, -1 for none."""
    places = np.full(rows, -1)
    places[indices] = np.arange(len(indices))
    return places


def _bias(sampled: SampledSlots, table: SamplingTable, flags: np.ndarray) -> list[np.ndarray] | None:
    """Starts, tokens and values of a :class:`SparseBias`; None for none."""
    counts = np.zeros(len(flags) + 1, dtype=np.int64)
    parts = []
    for i in np.flatnonzero(flags & BIASED).tolist():
        bias = table[sampled.slots[i]].bias_at(sampled.positions[i])
        if bias is not None:
            counts[i + 1] = len(bias.tokens)
            parts.append(bias)
    if not parts:
        return None
    tokens, values = (np.concatenate([part[k] for part in parts]) for k in range(2))
    return [counts.cumsum(), tokens, values]


def _bad_words(
    sampled: SampledSlots, table: SamplingTable, flags: np.ndarray, starts: np.ndarray
) -> list[np.ndarray] | None:
    """The vectors of a :class:`WordsOfRows`; None for none. ``starts``: of the rows' biases."""
    words = [
        (row, int(starts[row]), bad_words)
        for row in np.flatnonzero(flags & BAD_WORDS).tolist()
        if (bad_words := table[sampled.slots[row]].bad_words) is not None
    ]
    return vectors_of_rows(words) if words else None
