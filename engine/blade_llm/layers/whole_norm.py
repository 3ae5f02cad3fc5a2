"""The norm of all queries of a token together, and of all keys (OLMo 2, arXiv 2501.00656), where ranks divide the
heads."""

from __future__ import annotations

import torch
from torch import Tensor

from blade_llm.parallel.group import RankGroup


def normalise_whole_heads(qkv: Tensor, q_norm: Tensor, k_norm: Tensor, eps: float, group: RankGroup) -> Tensor:
    """``qkv`` with queries and keys normalised by the RMS of those of all ranks: a new tensor like it.

    ``qkv``: [tokens, queries + keys + values], of this rank's heads. ``q_norm``, ``k_norm``: [queries], [keys], the
    weights of these heads. All ranks have as many heads, and a key head that is on several is on as many as any other:
    so the mean of squares over all heads is the mean of the ranks' means. Raises
    :class:`~blade_llm.parallel.group.RankLostError`.
    """
    first_key, first_value = len(q_norm), len(q_norm) + len(k_norm)
    wide = qkv[:, :first_key].float(), qkv[:, first_key:first_value].float()
    means = group.all_reduce(torch.stack([each.square().mean(1) for each in wide], dim=1))
    scales = torch.rsqrt(means / group.size + eps)
    # Rounded before the weight, as of one rank.
    normed = (
        (each * scale).to(qkv.dtype) * weight
        for each, scale, weight in zip(wide, (scales[:, :1], scales[:, 1:]), (q_norm, k_norm), strict=True)
    )
    return torch.cat((*normed, qkv[:, first_value:]), dim=1)
