"""Routing in C++ (``native.cpp``)."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from blade_llm.kernels.moe_routing import torch as _reference
from blade_llm.kernels.native.functions import IS_BF16, bind
from blade_llm.spec.moe import RoutingSpec


def route(logits: Tensor, spec: RoutingSpec, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    is_bf16 = IS_BF16.get(logits.dtype)
    if is_bf16 is None or not logits.is_contiguous() or (bias is not None and not _plain(bias)):
        return _reference.route(logits, spec, bias)
    tokens, experts = logits.shape
    ids = torch.empty(tokens, spec.top_k, dtype=torch.int32)
    weights = torch.empty(tokens, spec.top_k)
    _route()(
        is_bf16,
        logits.data_ptr(),
        bias.data_ptr() if bias is not None else None,
        tokens,
        experts,
        spec.top_k,
        spec.scoring == "sigmoid",
        spec.renormalize,
        spec.scale,
        spec.num_groups,
        spec.top_groups,
        ids.data_ptr(),
        weights.data_ptr(),
    )
    return ids, weights


def _plain(bias: Tensor) -> bool:
    return bias.dtype == torch.float32 and bias.is_contiguous()


@cache
def _route() -> Any:
    return bind("moe_route", "ippnnniifnnpp")
