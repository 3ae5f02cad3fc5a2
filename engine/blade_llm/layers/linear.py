"""A linear layer that stores its weight in the form the device multiplies fastest (:mod:`blade_llm.kernels.linear`),
or plainly where no other form is faster."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from blade_llm.kernels.linear import linear, pack
from blade_llm.kernels.linear.packed import PackedLinear, Packer, Quantization
from blade_llm.kernels.linear.torch import PlainLinear
from blade_llm.kernels.lora import FactorTable, add_lora
from blade_llm.layers.step import StepMetadata


@dataclass(frozen=True, slots=True)
class LinearOptions:
    """How all linear layers of a model are stored and computed."""

    quant: Quantization = "none"
    deterministic: bool = False
    """A row's result does not depend on the other rows; see :func:`blade_llm.kernels.linear.pack`."""
    packer: Packer = pack


class Linear:
    """``x @ weight.T + bias``."""

    __slots__ = ("adapters", "bias", "nbytes", "packed", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None, options: LinearOptions | None = None) -> None:
        """``weight``: [out, in]; ``bias``: [out]. A packed layer keeps neither, so their memory can go."""
        options = options or LinearOptions()
        self.packed = options.packer(weight, bias, options.quant, deterministic=options.deterministic)
        self.adapters: FactorTable | None = None
        """What LoRA adapters add to the result; None: the layer takes none."""
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        if self.packed is not None:
            self.nbytes = self.packed.nbytes
        else:
            self.weight, self.bias = weight, bias
            self.nbytes = weight.nbytes + (bias.nbytes if bias is not None else 0)

    @classmethod
    def of_packed(cls, packed: PackedLinear) -> Linear:
        """The layer of a weight that is packed already, bias included."""
        made = cls.__new__(cls)
        made.packed, made.weight, made.bias, made.adapters = packed, None, None, None
        made.nbytes = packed.nbytes
        return made

    def as_packed(self) -> PackedLinear:
        """The layer without adapters, for what takes packed ones."""
        if self.packed is not None:
            return self.packed
        assert self.weight is not None
        return PlainLinear(self.weight, self.bias)

    def __call__(self, x: Tensor, step: StepMetadata | None = None) -> Tensor:
        """[tokens, in] to [tokens, out]. ``step``: whose tokens they are; None outside of the layers."""
        if self.packed is not None:
            y = self.packed(x)
        else:
            assert self.weight is not None
            y = linear(x, self.weight, self.bias)
        if self.adapters is not None and step is not None and step.adapters is not None:
            add_lora(x, y, self.adapters, step.adapters)
        return y
