"""Bit masks out of booleans, and out of lists of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from blade_llm.sampling.masks import TokenMasks


def bits_of(allowed: torch.Tensor) -> torch.Tensor:
    """[rows, vocabulary] bool to [rows, ceil(vocabulary / 32)] int32."""
    padded = torch.nn.functional.pad(allowed, (0, -allowed.shape[1] % 32)).view(len(allowed), -1, 32)
    words = (padded.long() << torch.arange(32)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def masks_for(slots: Sequence[int], allowed: Mapping[int, Sequence[int]], vocabulary: int) -> TokenMasks | None:
    """What a scheduler sends for those of ``slots`` that ``allowed`` names; None for none."""
    indices = [index for index, slot in enumerate(slots) if slot in allowed]
    if not indices:
        return None
    masks = torch.zeros(len(indices), vocabulary, dtype=torch.bool)
    for mask, index in zip(masks, indices, strict=True):
        mask[list(allowed[slots[index]])] = True
    return TokenMasks(indices, bits_of(masks).numpy())
