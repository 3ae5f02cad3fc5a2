"""Top-k and top-p as thresholds: for each row the smallest logit that may still be drawn.

A threshold says the same as a filtered copy of the logits, costs one number a row, and treats equal logits alike, so
the surviving set never depends on how ties happen to be sorted.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def top_k_thresholds(logits: Tensor, top_k: Tensor, largest: int) -> Tensor:
    """The k-th largest logit of each row.

    ``logits``: [rows, vocabulary] fp32; ``top_k``: [rows] int64 >= 1; ``largest``: its maximum, known to the host.
    Values beyond the vocabulary keep everything. Returns [rows].
    """
    best = logits.topk(min(largest, logits.shape[1])).values
    return best.gather(1, (top_k.clamp(max=best.shape[1]) - 1).unsqueeze(1)).squeeze(1)


def top_p_thresholds(logits: Tensor, top_p: Tensor, floors: Tensor) -> Tensor:
    """The smallest logit of each row's nucleus (Holtzman et al., arXiv 1904.09751): a token stays when the tokens more
    likely than it have less than ``top_p`` of the probability.

    ``logits``: [rows, vocabulary] fp32; ``top_p``: [rows] fp32; ``floors``: [rows] fp32, thresholds applied before, the
    probabilities being those of what they leave. Returns [rows], never below ``floors``.
    """
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
