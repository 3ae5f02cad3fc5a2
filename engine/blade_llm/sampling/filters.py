"""Top-k and top-p as thresholds: for each row the smallest logit that may still be drawn.

A threshold says the same as a filtered copy of the logits, costs one number a row, and treats equal logits alike, so
the surviving set never depends on how ties happen to be sorted.
"""

from __future__ import annotations

import torch
from torch import Tensor

CANDIDATES = 1024
"""Top-p looks at this many best tokens first and sorts the whole vocabulary only for rows where they do not suffice."""


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
    total = kept.logsumexp(-1, keepdim=True)
    if logits.device.type == "cpu" and logits.shape[1] > 2 * CANDIDATES:
        best = kept.topk(CANDIDATES).values
        thresholds, enough = _nucleus(best, total, top_p)
        rest = (~enough).nonzero().squeeze(1)
        if len(rest):
            best = kept[rest].sort(dim=-1, descending=True).values
            thresholds[rest] = _nucleus(best, total[rest], top_p[rest])[0]
    else:
        thresholds, _ = _nucleus(kept.sort(dim=-1, descending=True).values, total, top_p)
    return torch.maximum(thresholds, floors)


def _nucleus(best: Tensor, total: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """``best``: [rows, n] descending; ``total``: [rows, 1] log of the whole mass. Also whether n tokens sufficed."""
    mass = (best - total).exp().cumsum(-1)
    # The first token always stays; token i + 1 stays when the mass up to and including i is below top_p.
    count = 1 + (mass[:, :-1] < top_p.unsqueeze(1)).sum(-1)
    thresholds = best.gather(1, count.unsqueeze(1) - 1).squeeze(1)
    return thresholds, mass[:, -1] >= top_p
