"""The reference: one expert after the other, each for the tokens that chose it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from blade_llm.kernels.activate.torch import activate
from blade_llm.kernels.experts.packed import LayerPair, Part
from blade_llm.kernels.linear import torch as linear
from blade_llm.kernels.linear.packed import PackedLinear, Quantization


class TorchExperts:
    """Experts as linear layers of :mod:`blade_llm.kernels.linear`."""

    __slots__ = ("_experts", "_part", "nbytes")

    def __init__(
        self,
        experts: Iterable[tuple[Tensor, Tensor]],
        quant: Quantization,
        deterministic: bool,
        part: Part | None = None,
    ) -> None:
        def pack(weight: Tensor) -> PackedLinear:
            return linear.pack(weight, None, quant, deterministic) or linear.PlainLinear(weight, None)

        self._take([(pack(gate_up), pack(down)) for gate_up, down in experts], part)

    @classmethod
    def of_layers(cls, experts: list[LayerPair], part: Part | None = None) -> TorchExperts:
        """Those that are packed already, each in whatever form."""
        made = cls.__new__(cls)
        made._take(experts, part)
        return made

    def _take(self, experts: list[LayerPair], part: Part | None) -> None:
        self._experts, self._part = experts, part
        self.nbytes = sum(gate_up.nbytes + down.nbytes for gate_up, down in experts)

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        tokens, top_k = ids.shape
        places, count = ids.flatten(), len(self._experts)
        results = torch.empty(tokens * top_k, x.shape[1], dtype=x.dtype, device=x.device)
        if self._part is None:
            order = places.argsort(stable=True)
        else:
            places = places - self._part.first
            here = ((places >= 0) & (places < count)).nonzero()[:, 0]
            places = places[here]
            order = here[places.argsort(stable=True)]
            results.zero_()
        counts = places.bincount(minlength=count).tolist()
        for pairs, (gate_up, down) in zip(torch.split(order, counts), self._experts, strict=True):
            if len(pairs):
                results[pairs] = down(activate(gate_up(x[pairs // top_k]), "silu", gated=True))
        return weighted_sum(results.view(tokens, top_k, x.shape[1]), weights)


def weighted_sum(results: Tensor, weights: Tensor) -> Tensor:
    """[tokens, top_k, hidden] to [tokens, hidden], one expert after the other, so always in the same order."""
    total = results[:, 0].float() * weights[:, :1]
    for place in range(1, weights.shape[1]):
        total += results[:, place].float() * weights[:, place, None]
    return total.to(results.dtype)
