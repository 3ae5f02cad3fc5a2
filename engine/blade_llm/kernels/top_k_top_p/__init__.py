"""Top-k, top-p and min-p as thresholds: for each row the smallest logit that may still be sampled.

A threshold says the same as a filtered copy of the logits, costs one number a row, and treats equal logits alike, so
the surviving set never depends on how ties happen to be sorted.
"""

from torch import Tensor

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.top_k_top_p import torch as _reference


def top_k_top_p_thresholds(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor | None = None) -> Tensor:
    """Each row's smallest logit that passes all three filters, ``-inf`` where none is on.

    ``logits``: [rows, vocabulary] fp32, contiguous, after the temperature. ``top_k``: [rows] int64, 0 or at least the
    vocabulary is off; keeps the k-th largest logit and all not below it. ``top_p``: [rows] fp32, 1 is off (Holtzman et
    al., arXiv 1904.09751); of what top-k left, a token stays when the tokens more likely than it have less than
    ``top_p`` of the probability. ``min_p``: [rows] fp32, 0 is off (Nguyen et al., arXiv 2407.01082); a token stays when
    it is at least ``min_p`` times as likely as the likeliest. Returns [rows] fp32.
    """
    backend = backend_of(logits)
    if backend == "native":
        from blade_llm.kernels.top_k_top_p import native

        return native.top_k_top_p_thresholds(logits, top_k, top_p, min_p)
    if backend == "triton":
        from blade_llm.kernels.top_k_top_p import triton

        return triton.top_k_top_p_thresholds(logits, top_k, top_p, min_p)
    return _reference.top_k_top_p_thresholds(logits, top_k, top_p, min_p)
