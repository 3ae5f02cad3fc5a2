"""How activations are rounded, out of a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from blade_llm.kernels.linear.activations import Activations
from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.weight_source import WeightSource
from blade_llm.spec.quantization.weights import Float8Form, IntegerForm
from blade_llm.spec.tensors import TensorPart

Weight = TypeVar("Weight", bound=QuantizedWeight | Float8Weight)


def with_activations(weight: Weight, source: WeightSource, part: TensorPart) -> Weight:
    """``weight`` with the rounding of its inputs that ``part`` has.

    Raises :class:`~blade_llm.models.errors.ModelFilesError` for a scale that is none.
    """
    form = part.form
    if not isinstance(form, IntegerForm | Float8Form) or form.activations is None:
        return weight
    stored = form.activations
    scale = None
    if stored.scale is not None:
        name = f"{part.module}.{stored.scale}"
        scale = float(source.stored(name))
        if not 0 < scale < float("inf"):
            raise ModelFilesError(f"{name} is {scale}: a scale of activations is positive; take another checkpoint")
    return replace(weight, activations=Activations(stored.kind, scale, stored.group_size, stored.most))
