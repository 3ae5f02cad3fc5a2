"""How linear layers get their weights, and in what form they keep them."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from torch import Tensor
from torch import dtype as DType

from blade_llm.kernels.linear import pack_quantized, why_floats
from blade_llm.kernels.linear.affine import AffineLinear, StackedLinear
from blade_llm.kernels.linear.clamped import ClampedLinear
from blade_llm.kernels.linear.float8 import Float8Linear, Float8Weight
from blade_llm.kernels.linear.packed import PackedLinear
from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.layers.linear import Linear, LinearOptions
from blade_llm.layers.moe import MoE, MoEWeights
from blade_llm.models.parameters import Parameters
from blade_llm.models.quantized.float8_stack import float8_stackable, stack_float8
from blade_llm.models.quantized.slicing import stack, stackable
from blade_llm.spec.moe import MoESpec
from blade_llm.spec.tensors import LinearMap


class LinearMethod(Protocol):
    """Makes linear layers of what a checkpoint has.

    One that reads more than plain weights (scales, zero points, a slice for one of several ranks) gets it by name from
    ``parameters.source``: :attr:`~blade_llm.spec.tensors.LinearPart.module` names the layer, ``rows`` says which
    outputs are wanted and in which order, ``columns`` which inputs. The layer is called with the step's metadata.
    """

    def create(self, parameters: Parameters, linear: LinearMap) -> Linear:
        """The layer whose weights ``linear`` describes."""

    @property
    def deterministic(self) -> bool:
        """A row's result must not depend on the other rows."""

    def moe(self, parameters: Parameters, place: str, spec: MoESpec) -> MoE:
        """The mixture-of-experts layer at ``place``."""

    def shared(self, weight: Tensor) -> Linear:
        """A layer without bias on a weight that something else has loaded, [out, in]."""


class CheckpointWeights:
    """Reads the weights and packs them; plain ones may be quantised here, those that are already stay as they are."""

    def __init__(self, options: LinearOptions | None = None) -> None:
        self._options = options or LinearOptions()
        self.as_floats: Counter[str] = Counter()
        """How many quantised weights become floats each time they are multiplied, by why."""

    def create(self, parameters: Parameters, linear: LinearMap) -> Linear:
        if linear.quantized:
            keys = [part.key for part in (*linear.weights, *linear.biases)]
            return Linear.of_packed(parameters.source.packed(keys, lambda: self._pack_quantized(parameters, linear)))
        bias = parameters.read(linear.biases) if linear.bias else None
        return Linear(parameters.read(linear.weights), bias, self._options)

    def _pack_quantized(self, parameters: Parameters, linear: LinearMap) -> PackedLinear:
        """One weight where all parts are quantised alike, else one for each part."""
        bias = parameters.read(linear.biases) if linear.bias else None
        options, dtype = self._options, parameters.source.dtype
        weights = [part if part.form is None else parameters.quantized(part) for part in linear.weights]
        if stackable(weights):
            return self._packed(stack(weights), bias, dtype)
        if float8_stackable(weights):
            return self._packed(stack_float8(weights), bias, dtype)
        parts: list[PackedLinear] = []
        first = 0
        for weight, part in zip(weights, linear.weights, strict=True):
            own = None if bias is None else bias[first : first + part.wanted_shape[0]]
            first += part.wanted_shape[0]
            if isinstance(weight, QuantizedWeight | Float8Weight):
                parts.append(self._packed(weight, own, dtype))
            else:
                plain = Linear(parameters.read((part,)), own, options)
                parts.append(plain)
        return StackedLinear(parts)

    def _packed(self, weight: QuantizedWeight | Float8Weight, bias: Tensor | None, dtype: DType) -> PackedLinear:
        packed = pack_quantized(weight, bias, deterministic=self._options.deterministic, dtype=dtype)
        if isinstance(packed.inner if isinstance(packed, ClampedLinear) else packed, AffineLinear | Float8Linear):
            self.as_floats[why_floats(weight, dtype)] += 1
        return packed

    @property
    def deterministic(self) -> bool:
        return self._options.deterministic

    def moe(self, parameters: Parameters, place: str, spec: MoESpec) -> MoE:
        router = parameters.tensor(f"{place}.router")

        def linears(name: str) -> tuple[LinearMap, LinearMap]:
            return parameters.linear(f"{place}.{name}.up"), parameters.linear(f"{place}.{name}.down")

        def expert(name: str) -> tuple[Tensor, Tensor]:
            up, down = linears(name)
            return parameters.read(up.weights), parameters.read(down.weights)

        def layers(name: str) -> tuple[PackedLinear, PackedLinear]:
            up, down = linears(name)
            return self.create(parameters, up).as_packed(), self.create(parameters, down).as_packed()

        names = [f"experts.{index}" for index in spec.experts]
        # On a GPU they become floats: there is no grouped product of such weights, and one expert after the other would
        # have the host wait, which CUDA graphs do not allow.
        packed = router.device.type == "cpu" and any(each.quantized for name in names for each in linears(name))
        shared: tuple[Tensor, Tensor] | tuple[Linear, Linear] | None = None
        if spec.shared_inner and any(each.quantized for each in linears("shared")):
            up, down = linears("shared")
            shared = self.create(parameters, up), self.create(parameters, down)
        elif spec.shared_inner:
            shared = expert("shared")
        weights = MoEWeights(
            router=router,
            experts=(layers(name) for name in names) if packed else (expert(name) for name in names),
            packed=packed,
            shared=shared,
            shared_gate=parameters.tensor(f"{place}.shared_gate") if spec.shared_gate else None,
            correction_bias=parameters.tensor(f"{place}.correction_bias") if spec.correction_bias else None,
        )
        return MoE(spec, weights, self._options)

    def shared(self, weight: Tensor) -> Linear:
        return Linear(weight, None, self._options)
