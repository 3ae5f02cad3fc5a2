"""The protocol of packed experts, whichever implementation packed them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from blade_llm.kernels.linear.packed import PackedLinear
from blade_llm.spec.moe import RoutingSpec


@dataclass(frozen=True, slots=True)
class Part:
    """Some experts of a layer, as ranks have them that divide its experts as wholes (expert parallelism: Lepikhin et
    al., arXiv 2006.16668): what tokens have of the others is left out of their sums, and costs nothing."""

    first: int
    """The first one's id; the others' follow."""
    total: int
    """Experts of the layer."""


LayerPair = tuple[PackedLinear, PackedLinear]
"""An expert as layers that are packed already: gate and up stacked, and down."""


class PackedExperts(Protocol):
    """Gated MLPs, of which each token is computed by a few."""

    nbytes: int
    """Of the packed weights with scales and padding."""

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """[tokens, hidden] to the same: for each token the weighted sum over its experts, of a :class:`Part` over those
        of them that are here, which may be none.

        ``ids``: [tokens, top_k] int32, those of a token all different; ``weights``: [tokens, top_k] fp32.
        """


@dataclass(frozen=True, slots=True)
class MixtureWeights:
    """A whole mixture-of-experts layer, without shared experts."""

    router: PackedLinear | None
    """None where it is not packed."""
    experts: PackedExperts
    routing: RoutingSpec
    correction_bias: Tensor | None = None
    """[num_experts] fp32."""
