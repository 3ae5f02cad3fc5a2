"""Bad words of several tokens on the device: which of them the tokens so far have all of but the last token.

The slot tables' tokens are compared there, those that the host does not know yet and draft tokens included, so nothing
waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from torch import Tensor

from blade_llm.kernels.penalties import SparseBias
from blade_llm.sampling.restrictions import BadWords

VECTORS = 5


@dataclass(frozen=True, slots=True)
class WordsOfRows:
    """The bad words of sampled rows, one after another."""

    entries: Tensor
    """[words] int64: of each word's last token among the entries of the rows' :class:`SparseBias`."""
    words: Tensor
    """[tokens before the last] int64: the word that each belongs to."""
    rows: Tensor
    """[tokens before the last] int64: the row that each belongs to."""
    distances: Tensor
    """[tokens before the last] int64: how far before the sampled position it has to stand."""
    tokens: Tensor
    """[tokens before the last] int64."""


def vectors_of_rows(words_of_rows: Iterable[tuple[int, int, BadWords]]) -> list[np.ndarray]:
    """The vectors of a :class:`WordsOfRows`, on the host. ``words_of_rows``: rows, where their bias entries begin, and
    their bad words; at least one."""
    parts: list[tuple[np.ndarray, ...]] = []
    count = 0
    for row, first, bad in words_of_rows:
        parts.append((bad.places + first, bad.words + count, np.full_like(bad.words, row), bad.distances, bad.tokens))
        count += len(bad.places)
    return [np.concatenate(vectors) for vectors in zip(*parts, strict=True)]


def forbid_completion(
    bias: SparseBias,
    bad: WordsOfRows,
    token_ids: Tensor,
    slots: Tensor,
    positions: Tensor,
    num_prompt_tokens: Tensor,
) -> None:
    """Change the values of ``bias`` to ``-inf`` for the tokens that would complete a bad word of the output.

    ``token_ids``: [slots, longest] int32; ``slots``, ``positions``: of the sampled rows, ``num_prompt_tokens``: of the
    slots; int64.
    """
    of_tokens = slots.index_select(0, bad.rows)
    columns = positions.index_select(0, bad.rows) - bad.distances
    in_output = columns >= num_prompt_tokens.index_select(0, of_tokens)
    differs = (token_ids[of_tokens, columns.clamp_(min=0)] != bad.tokens) | ~in_output
    different = torch.zeros_like(bad.entries).index_add_(0, bad.words, differs.to(torch.int64))
    forbidden = torch.zeros_like(bad.entries, dtype=bias.values.dtype).masked_fill_(different == 0, -inf)
    bias.values.index_add_(0, bad.entries, forbidden)
