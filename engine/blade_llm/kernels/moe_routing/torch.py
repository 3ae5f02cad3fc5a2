"""Routing in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from blade_llm.spec.moe import RoutingSpec

LEAST_SUM = 1e-20
"""Added to sums that are divided by, which sigmoids that are all zero would make zero, too."""


def route(logits: Tensor, spec: RoutingSpec, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    wide = logits.float()
    scores = wide.softmax(-1) if spec.scoring == "softmax" else wide.sigmoid()
    choice = scores if bias is None else scores + bias
    if spec.limits_groups:
        grouped = choice.view(len(choice), spec.num_groups, spec.group_size)
        group_scores = grouped.amax(-1) if bias is None else grouped.topk(2, dim=-1).values.sum(-1)
        groups = group_scores.topk(spec.top_groups, dim=-1).indices
        excluded = torch.ones_like(group_scores, dtype=torch.bool).scatter_(1, groups, False)
        choice = grouped.masked_fill(excluded.unsqueeze(-1), float("-inf")).view_as(choice)
    ids = choice.topk(spec.top_k, dim=-1).indices
    weights = scores.gather(1, ids)
    if spec.renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + LEAST_SUM)
    return ids.int(), weights * spec.scale
