"""What one draw has to do: which of its stages run at all, and over which rows. The host decides from its own copy of
the parameters; what the device has to know goes there in one transfer, and most draws need none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blade_llm.kernels.penalties import RowMasks, SparseBias
from blade_llm.sampling.masks import TokenMasks
from blade_llm.sampling.table import BIASED, FILTERED, GREEDY, LOGPROBS, PENALISED, RANDOM, SamplingTable
from blade_llm.sampling.transfer import all_to_device, words_to_device


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
class Stages:
    """The stages of one draw. Indices are into the sampled rows."""

    penalised: bool
    """Whether some row has a penalty."""
    bias: SparseBias | None
    """What is added to single logits; None when there is nothing."""
    masks: RowMasks | None
    """What the rows with a grammar may draw; None when no row has one."""
    greedy: bool
    """Whether some row takes the likeliest token."""
    random: bool
    """Whether some row draws at random."""
    drawing: Tensor | None
    """[rows that draw at random] int64; None for all, or none."""
    filtered: bool
    """Whether some row has top-k, top-p or min-p."""
    asking: Tensor | None
    """[rows that want log-probabilities] int64; None for none."""
    asking_indices: list[int]
    """The same, on the host."""


def stages_of(
    sampled: SampledRows, table: SamplingTable, device: torch.device, masks: TokenMasks | None = None
) -> Stages:
    """Decide what a draw for ``sampled`` does. ``masks``: may be overwritten when this returns, on a GPU; on CPU they
    are read in place."""
    asks = table.asks[sampled.rows]
    assert asks.all(), "a row is sampled but holds no request"
    union = int(np.bitwise_or.reduce(asks))
    vectors: list[np.ndarray] = []
    mixed = bool(union & GREEDY and union & RANDOM)
    if mixed:
        vectors.append(np.flatnonzero(asks & RANDOM))
    asking = np.flatnonzero(asks & LOGPROBS) if union & LOGPROBS else None
    if asking is not None:
        vectors.append(asking)
    masked = masks is not None and len(masks.indices) > 0
    if masked:
        assert masks is not None
        vectors.append(_places(masks.indices, len(asks)))
    bias = _bias(sampled, table, asks) if union & BIASED else None
    if bias is not None:
        vectors += bias
    sent = iter(all_to_device(vectors, device) if vectors else [])
    sent_drawing = next(sent) if mixed else None
    sent_asking = next(sent) if asking is not None else None
    sent_masks = RowMasks(next(sent), words_to_device(masks.words, device)) if masked and masks is not None else None
    sent_bias = SparseBias(next(sent), next(sent), next(sent)) if bias is not None else None
    return Stages(
        drawing=sent_drawing,
        asking=sent_asking,
        asking_indices=[] if asking is None else asking.tolist(),
        masks=sent_masks,
        bias=sent_bias,
        penalised=bool(union & PENALISED),
        greedy=bool(union & GREEDY),
        random=bool(union & RANDOM),
        filtered=bool(union & FILTERED),
    )


def _places(indices: list[int], rows: int) -> np.ndarray:
    """Which mask each row has, -1 for none."""
    places = np.full(rows, -1)
    places[indices] = np.arange(len(indices))
    return places


def _bias(sampled: SampledRows, table: SamplingTable, asks: np.ndarray) -> list[np.ndarray] | None:
    """Starts, tokens and values of a :class:`SparseBias`; None for none."""
    counts = np.zeros(len(asks) + 1, dtype=np.int64)
    parts = []
    for i in np.flatnonzero(asks & BIASED).tolist():
        bias = table[sampled.rows[i]].bias_at(sampled.positions[i])
        if bias is not None:
            counts[i + 1] = len(bias.tokens)
            parts.append(bias)
    if not parts:
        return None
    tokens, values = (np.concatenate([part[k] for part in parts]) for k in range(2))
    return [counts.cumsum(), tokens, values]
