"""Gumbel-max sampling in plain torch, with numpy's 32-bit integers for the hash on CPU.

Random bits come from a counter-based hash of 32-bit words, written once for two kinds of array: int64 tensors, whose
products stay below 2^63, and uint32 numpy arrays, which wrap and are several times faster. Both give the same bits.
"""

from __future__ import annotations

from itertools import product
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_WORD = 0xFFFFFFFFFFFFFFFF
_CHUNK = 1 << 15
"""Logits that sampling on CPU handles together: they and their temporaries fit into a core's cache."""

Words = TypeVar("Words", Tensor, np.ndarray)
"""32-bit words: int64 tensors or uint32 arrays."""


def noise_key(seed: int, sample_index: int) -> tuple[int, int]:
    """Two 32-bit words out of a 64-bit seed and the index of the parallel sample (splitmix64, Steele et al. 2014)."""
    mixed = _splitmix64(_splitmix64(seed & _WORD) ^ (sample_index & _WORD))
    return mixed & _MASK, mixed >> 32


def gumbel_noise(keys: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise, fp32. ``keys``: [..., 2]; ``positions``, ``tokens``: int64, broadcast with them."""
    bits = _token_bits(tokens, *_row_words(keys, positions))
    # Uniform on (0, 1), finest near 0, where the largest noise comes from.
    uniform = ((bits.float() + 0.5) * 2.0**-32).clamp_(max=1.0 - 2.0**-24)
    return torch.log1p(uniform.neg_()).neg_().log_().neg_()


def gumbel_argmax(logits: Tensor, thresholds: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    if logits.device.type == "cpu":
        return _gumbel_argmax_cpu(logits, thresholds, keys, positions)
    tokens = torch.arange(logits.shape[1], device=logits.device)
    noisy = logits + gumbel_noise(keys.unsqueeze(1), positions.unsqueeze(1), tokens)
    return noisy.masked_fill_(logits < thresholds.unsqueeze(1), float("-inf")).max(-1).indices


def _gumbel_argmax_cpu(logits: Tensor, thresholds: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """The same tokens, with the two logarithms only for the few tokens that can still win.

    The likeliest token's own noisy logit is a lower bound of the winner's. A token reaches it only with noise of at
    least ``bound - logit``, that is with a uniform number of at most ``exp(logit - bound)``.
    """
    best, winners = logits.max(-1)
    bound = best + gumbel_noise(keys, positions, winners)
    rows, tokens = _can_win(logits.numpy(), thresholds.numpy(), bound.numpy(), _row_words(keys, positions))
    if len(rows):
        noisy = logits[rows, tokens] + gumbel_noise(keys[rows], positions[rows], tokens)
        # By row, then from the best: the first of each row wins. A row of NaN (a broken model) has no candidate.
        order = noisy.argsort(descending=True, stable=True)
        order = order[rows[order].argsort(stable=True)]
        rows, tokens = rows[order], tokens[order]
        leads = torch.ones(len(rows), dtype=torch.bool)
        leads[1:] = rows[1:] != rows[:-1]
        winners[rows[leads]] = tokens[leads]
    return winners


def _can_win(
    logits: np.ndarray, thresholds: np.ndarray, bound: np.ndarray, words: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Row and token of every candidate."""
    num_rows, vocabulary = logits.shape
    first, second = (word.numpy().astype(np.uint32)[:, None] for word in words)
    height, width = max(1, _CHUNK // vocabulary), min(vocabulary, _CHUNK)
    rows: list[np.ndarray] = []
    tokens: list[np.ndarray] = []
    for top, left in product(range(0, num_rows, height), range(0, vocabulary, width)):
        part = slice(top, top + height)
        chunk = logits[part, left : left + width]
        with np.errstate(invalid="ignore"):  # of a row of which nothing is left, which has no candidate either
            limit = np.exp(chunk - bound[part, None])
        limit *= 1.001 * 2.0**32  # a little more than exact: rounding must not lose the winner
        ids = np.arange(left, left + chunk.shape[1], dtype=np.uint32)
        bits = _token_bits(ids, first[part], second[part]).astype(np.float32)
        row, token = np.nonzero((bits <= limit) & (chunk >= thresholds[part, None]))
        rows.append(row + top)
        tokens.append(token + left)
    return torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(tokens))


def _row_words(keys: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """What the noise of one row at one position is keyed with: two well mixed words."""
    first = _mix(keys[..., 0] ^ _mix(positions + 0x2545F491))
    return first, _mix(keys[..., 1] ^ first)


def _token_bits(tokens: Words, first: Words, second: Words) -> Words:
    """32 random bits a token: :func:`_mix` with the second word added after its first round."""
    x = tokens ^ first
    x = (x ^ (x >> 16)) * 0x7FEB352D & _MASK
    x = (x + second) & _MASK
    x = (x ^ (x >> 15)) * 0x2C1B3C6D & _MASK
    x = (x ^ (x >> 14)) * 0x297A2D39 & _MASK
    result: Words = x ^ (x >> 16)
    return result


def _mix(x: Tensor) -> Tensor:
    """A bijection on 32-bit words with strong avalanche (xor-shift-multiply, multipliers below 2^31)."""
    x = (x ^ (x >> 16)) * 0x7FEB352D & _MASK
    x = (x ^ (x >> 15)) * 0x2C1B3C6D & _MASK
    x = (x ^ (x >> 14)) * 0x297A2D39 & _MASK
    return x ^ (x >> 16)


def _splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)
