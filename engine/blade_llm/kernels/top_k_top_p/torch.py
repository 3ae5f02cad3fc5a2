"""The thresholds in plain torch: a selection of the largest for top-k, a sort for top-p, each only for rows that need
it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def top_k_top_p_thresholds(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor | None = None) -> Tensor:
    thresholds = torch.full_like(logits[:, 0], float("-inf"))
    limited = _where((top_k > 0) & (top_k < logits.shape[1]))
    if len(limited):
        thresholds[limited] = _kth_largest(logits[limited], top_k[limited])
    nucleus = _where(top_p < 1.0)
    if len(nucleus):
        thresholds[nucleus] = _smallest_of_nucleus(logits[nucleus], top_p[nucleus], thresholds[nucleus])
    if min_p is not None:
        relative = _where(min_p > 0.0)
        if len(relative):
            lowest = logits[relative].amax(-1) + min_p[relative].log()
            thresholds[relative] = torch.maximum(thresholds[relative], lowest)
    return thresholds


def _where(needed: Tensor) -> Tensor:
    return needed.nonzero().squeeze(1)


def _kth_largest(logits: Tensor, top_k: Tensor) -> Tensor:
    best = logits.topk(int(top_k.max())).values
    return best.gather(1, (top_k - 1).unsqueeze(1)).squeeze(1)


def _smallest_of_nucleus(logits: Tensor, top_p: Tensor, floors: Tensor) -> Tensor:
    """``floors``: thresholds applied before, the probabilities being those of what they leave."""
    kept = logits.masked_fill(logits < floors.unsqueeze(1), float("-inf"))
    best = _sort_descending(kept)
    mass = best.softmax(-1).cumsum(-1)
    # The first token always stays; each further one while the mass of those before it is below top_p.
    last = (mass[:, :-1] < top_p.unsqueeze(1)).sum(-1)
    return torch.maximum(best.gather(1, last.unsqueeze(1)).squeeze(1), floors)


def _sort_descending(values: Tensor) -> Tensor:
    """Sort each row. On CPU with numpy, whose vectorised sort of bare values is about ten times faster than torch's."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=-1)).flip(-1)
    return values.sort(dim=-1, descending=True).values
