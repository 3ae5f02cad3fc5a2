"""A linear layer whose inputs have a largest magnitude, which the kernels that round them do not know of."""

from __future__ import annotations

from torch import Tensor

from blade_llm.kernels.linear.packed import PackedLinear


class ClampedLinear:
    """Larger inputs become the largest, in the type that they have: the scale that is made of them is then that of the
    bound, and they are its largest value (:attr:`~blade_llm.kernels.linear.activations.Activations.most`)."""

    __slots__ = ("_most", "inner", "nbytes")

    def __init__(self, inner: PackedLinear, most: float) -> None:
        self.inner, self._most = inner, most
        self.nbytes = inner.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return self.inner(x.clamp(-self._most, self._most))
