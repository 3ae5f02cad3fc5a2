"""Gumbel-max drawing in plain torch.

Random bits come from a counter-based hash in 64-bit integers whose products stay below 2^63: the same on every device.
On CPU noise is computed only for tokens that can still win.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_WORD = 0xFFFFFFFFFFFFFFFF
_NOISE_RANGE = 26.0
"""More than the largest noise (22.9, from the smallest uniform, 2^-33) minus the smallest (-2.9, from 1 - 2^-24): a
token this far below the best one cannot win whatever it draws."""


def noise_key(seed: int, sample_index: int) -> tuple[int, int]:
    """Two 32-bit words out of a 64-bit seed and the index of the parallel sample (splitmix64, Steele et al. 2014)."""
    mixed = _splitmix64(_splitmix64(seed & _WORD) ^ (sample_index & _WORD))
    return mixed & _MASK, mixed >> 32


def gumbel_noise(keys: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise, fp32. ``keys``: [..., 2]; ``positions``, ``tokens``: int64, broadcast with them."""
    first = _mix(keys[..., 0] ^ _mix(positions + 0x2545F491))
    second = _mix(keys[..., 1] ^ first)
    bits = _mix(_mix((tokens + first) & _MASK) ^ second)
    # Uniform on (0, 1), finest near 0, where the largest noise comes from.
    uniform = ((bits.float() + 0.5) * 2.0**-32).clamp_(max=1.0 - 2.0**-24)
    return torch.log1p(uniform.neg_()).neg_().log_().neg_()


def gumbel_argmax(logits: Tensor, thresholds: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    best = logits.amax(-1)
    # Not "at least": a row of NaN from a broken model must still yield some token rather than an error for everyone.
    possible = ~(logits < torch.maximum(thresholds, best - _NOISE_RANGE).unsqueeze(1))
    if logits.device.type == "cpu":
        return _draw_among(logits, possible, keys, positions)
    tokens = torch.arange(logits.shape[1], device=logits.device)
    noisy = logits + gumbel_noise(keys.unsqueeze(1), positions.unsqueeze(1), tokens)
    return noisy.masked_fill_(~possible, float("-inf")).max(-1).indices


def _draw_among(logits: Tensor, possible: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """Only the possible tokens, packed to the left: [rows, most possible tokens in a row]."""
    rows, tokens = possible.nonzero(as_tuple=True)
    counts = possible.sum(-1)
    columns = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
    noisy = torch.full((len(counts), int(counts.max())), float("-inf"))
    noisy[rows, columns] = logits[rows, tokens] + gumbel_noise(keys[rows], positions[rows], tokens)
    winners = noisy.max(-1).indices
    return tokens[(counts.cumsum(0) - counts) + winners]


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
