"""Routing of a mixture-of-experts layer: which experts compute a token, and what each result counts.

Softmax over all experts and the best k of them (Shazeer et al., arXiv 1701.06538; Mixtral, arXiv 2401.04088), or
DeepSeek's forms: experts of the best groups only (V2, arXiv 2405.04434, 2.2.2), and sigmoid scores with a bias that
takes part in the choice but not in the weight (V3, arXiv 2412.19437, 2.1.2). All in fp32.
"""

from __future__ import annotations

from torch import Tensor

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.moe_routing import torch as _reference
from blade_llm.spec.moe import RoutingSpec


def route(logits: Tensor, spec: RoutingSpec, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Expert ids ([tokens, top_k] int32, best first, all different) and weights ([tokens, top_k] fp32).

    ``logits``: [tokens, num_experts] of any float type. ``bias``: [num_experts] fp32, added to the scores for the
    choice; with it a group counts as much as its two best experts, without as much as its best.

    Equal scores on a CPU: in the order in which ``torch.topk`` has them, which is what transformers calls. On a GPU,
    where torch promises no order, the lowest id comes first. NaN counts as the largest score and its weight is NaN, so
    a broken token stays broken.
    """
    if logits.shape[-1] != spec.num_experts:
        raise ValueError(f"expected logits of {spec.num_experts} experts, got {list(logits.shape)}")
    if bias is not None and spec.limits_groups and spec.group_size < 2:
        raise ValueError("with a bias, groups are compared by their two best experts and need as many")
    backend = backend_of(logits)
    if backend == "native":
        from blade_llm.kernels.moe_routing import native

        return native.route(logits, spec, bias)
    if backend == "triton":
        from blade_llm.kernels.moe_routing import triton

        return triton.route(logits, spec, bias)
    return _reference.route(logits, spec, bias)
