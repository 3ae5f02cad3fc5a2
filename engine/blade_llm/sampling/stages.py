"""What one draw has to do: which of its stages run at all, and over which rows. The host decides from its own copy of
the parameters; what the device has to know goes there in one transfer, and most draws need none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blade_llm.kernels.penalties import SparseBias
from blade_llm.sampling.table import FILTERED, GREEDY, LOGPROBS, MASKED, PENALISED, RANDOM, SamplingTable
from blade_llm.sampling.transfer import all_to_device


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


def stages_of(sampled: SampledRows, table: SamplingTable, device: torch.device) -> Stages:
    """Decide what a draw for ``sampled`` does."""
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
    biases = _masks(sampled, table, asks) if union & MASKED else None
    if biases is not None:
        vectors += biases
    sent = all_to_device(vectors, device) if vectors else []
    return Stages(
        penalised=bool(union & PENALISED),
        bias=SparseBias(*sent[-3:]) if biases is not None else None,
        greedy=bool(union & GREEDY),
        random=bool(union & RANDOM),
        drawing=sent[0] if mixed else None,
        filtered=bool(union & FILTERED),
        asking=sent[int(mixed)] if asking is not None else None,
        asking_indices=[] if asking is None else asking.tolist(),
    )


def _masks(sampled: SampledRows, table: SamplingTable, asks: np.ndarray) -> list[np.ndarray] | None:
    """Tokens that may not be drawn yet, as starts, tokens and values of a :class:`SparseBias`; None for none."""
    counts = np.zeros(len(asks) + 1, dtype=np.int64)
    tokens: list[int] = []
    for i in np.flatnonzero(asks & MASKED).tolist():
        masked = table[sampled.rows[i]].masked_at(sampled.positions[i])
        counts[i + 1] = len(masked)
        tokens += masked
    if not tokens:
        return None
    return [counts.cumsum(), np.array(tokens, dtype=np.int64), np.full(len(tokens), -np.inf)]
