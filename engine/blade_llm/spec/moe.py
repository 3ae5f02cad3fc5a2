"""Mixture-of-experts layers: how they choose experts, and what experts they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from blade_llm.spec.mlp import MLPSpec


@dataclass(frozen=True, slots=True)
class RoutingSpec:
    """The rule that makes experts and their weights of a token's logits. Raises ValueError for what cannot be.

    Mixtral, Qwen3-MoE
        softmax, ``renormalize``.
    Qwen2-MoE
        softmax.
    DeepSeek-V2
        softmax, the best groups by their best expert, ``scale``.
    DeepSeek-V3
        sigmoid, a correction bias, the best groups by the sum of their two best experts, ``renormalize``, ``scale``.
    """

    num_experts: int
    top_k: int
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = False
    """Whether the chosen experts' weights are divided by their sum (``norm_topk_prob``)."""
    scale: float = 1.0
    """What weights are multiplied with in the end (``routed_scaling_factor``)."""
    num_groups: int = 1
    """Into how many groups of neighbours the experts are divided (``n_group``)."""
    top_groups: int = 1
    """From how many groups a token may choose (``topk_group``)."""

    def __post_init__(self) -> None:
        if self.scoring not in ("softmax", "sigmoid"):
            raise ValueError(f"scoring must be softmax or sigmoid, not {self.scoring!r}")
        if self.num_experts < 1 or self.num_groups < 1 or self.num_experts % self.num_groups:
            raise ValueError(f"{self.num_experts} experts cannot be divided into {self.num_groups} equal groups")
        if not 1 <= self.top_groups <= self.num_groups:
            raise ValueError(f"top_groups must be 1 to {self.num_groups} (num_groups), not {self.top_groups}")
        reachable = self.group_size * self.top_groups
        if not 1 <= self.top_k <= reachable:
            raise ValueError(
                f"top_k must be 1 to {reachable}, the experts of {self.top_groups} groups; it is {self.top_k}"
            )

    @property
    def group_size(self) -> int:
        """Experts of a group."""
        return self.num_experts // self.num_groups

    @property
    def limits_groups(self) -> bool:
        """Whether some groups are excluded for a token."""
        return self.top_groups < self.num_groups


@dataclass(frozen=True, slots=True)
class MoESpec:
    """The form of a mixture-of-experts layer, whose experts are MLPs with a SiLU gate and no biases."""

    routing: RoutingSpec
    inner: int
    """Inner size of an expert (``moe_intermediate_size``)."""
    shared_inner: int = 0
    """Inner size of the expert that all tokens share: of all shared ones together; 0 without."""
    shared_gate: bool = False
    """Whether the shared expert's result is multiplied with a sigmoid of the input (Qwen2-MoE)."""
    float32_router: bool = False
    """Whether logits are computed in fp32 whatever the model's type (DeepSeek)."""
    correction_bias: bool = False
    """Whether scores get a bias for the choice of experts (DeepSeek-V3)."""
    part: range | None = None
    """The experts of one rank, where ranks divide them as wholes; the routing is of all."""

    @property
    def experts(self) -> range:
        """The experts that are here."""
        return range(self.routing.num_experts) if self.part is None else self.part

    @property
    def shared(self) -> MLPSpec | None:
        """The expert that all tokens share."""
        return MLPSpec(self.shared_inner) if self.shared_inner else None
