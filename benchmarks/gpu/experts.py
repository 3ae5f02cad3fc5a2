"""Routing and grouped experts of Qwen3-30B-A3B's layer, beside a loop over experts and torch's grouped product."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.case import Case
from benchmarks.gpu.machine import DEVICE, DRY
from blade_llm.kernels.experts.torch import TorchExperts
from blade_llm.kernels.experts.triton import TritonExperts
from blade_llm.kernels.moe_routing import torch as routing_reference
from blade_llm.kernels.moe_routing import triton as routing
from blade_llm.spec.moe import RoutingSpec

EXPERTS, TOP_K, HIDDEN, INNER = (8, 2, 64, 32) if DRY else (128, 8, 2048, 768)
DTYPE = torch.float32 if DRY else torch.bfloat16
"""The interpreter cannot multiply matrices of bf16."""
SPEC = RoutingSpec(EXPERTS, TOP_K, renormalize=True)


def cases() -> Iterator[Case]:
    generator = torch.Generator(DEVICE).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return (torch.randn(*shape, device=DEVICE, generator=generator) * shape[-1] ** -0.5).to(DTYPE)

    gate_up, down = random(EXPERTS, 2 * INNER, HIDDEN), random(EXPERTS, HIDDEN, INNER)
    packed = TritonExperts(zip(gate_up, down, strict=True), "none", deterministic=False)
    loop = TorchExperts(zip(gate_up, down, strict=True), "none", deterministic=False)
    for tokens in (4,) if DRY else (1, 16, 64, 256, 2048, 8192):
        logits = torch.randn(tokens, EXPERTS, device=DEVICE, generator=generator)
        yield Case(
            f"moe_routing_{tokens}",
            lambda logits=logits: routing.route(logits, SPEC, None)[1],  # type: ignore[misc]
            lambda logits=logits: routing_reference.route(logits, SPEC, None)[1],  # type: ignore[misc]
            1e-5,
        )
        x = random(tokens, HIDDEN)
        ids, weights = routing_reference.route(logits, SPEC, None)

        def grouped(x: Tensor = x, ids: Tensor = ids, weights: Tensor = weights) -> Tensor:
            """``torch.nn.functional.grouped_mm``, without waiting for the device."""
            order = ids.flatten().argsort(stable=True)
            experts = torch.arange(EXPERTS, device=x.device, dtype=torch.int32)
            ends = torch.searchsorted(ids.flatten()[order], experts, right=True, out_int32=True)
            gate, up = F.grouped_mm(x[order // TOP_K], gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
            results = F.grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends)
            by_pair = torch.empty_like(results)
            by_pair[order] = results
            return (by_pair.view(len(x), TOP_K, HIDDEN) * weights[..., None]).sum(1).to(x.dtype)

        yield Case(
            f"experts_{tokens}",
            lambda x=x, ids=ids, weights=weights: packed(x, ids, weights),  # type: ignore[misc]
            lambda x=x, ids=ids, weights=weights: loop(x, ids, weights),  # type: ignore[misc]
            2e-2,
            bytes=len(ids.unique()) * 3 * HIDDEN * INNER * gate_up.element_size(),
            flops=2 * tokens * TOP_K * 3 * HIDDEN * INNER,
            torch_run=grouped if hasattr(F, "grouped_mm") and not DRY else None,
        )
