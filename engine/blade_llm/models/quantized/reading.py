"""Quantised weights out of a checkpoint, whatever its form."""

from __future__ import annotations

from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.models.quantized.activations import with_activations
from blade_llm.models.quantized.integers import read_awq, read_gptq, read_integers
from blade_llm.models.quantized.slicing import select_rows, slice_columns
from blade_llm.models.weight_source import WeightSource
from blade_llm.spec.quantized import AwqForm, Float8Form, GptqForm, IntegerForm
from blade_llm.spec.tensors import TensorPart


def read_quantized(source: WeightSource, part: TensorPart) -> QuantizedWeight | Float8Weight:
    """The rows and columns of a quantised weight that ``part`` wants.

    Raises :class:`~blade_llm.models.errors.ModelFilesError` for tensors that contradict each other.
    """
    whole = _read(source, part)
    return with_activations(slice_columns(select_rows(whole, part.rows), part.columns, part.module), source, part)


def _read(source: WeightSource, part: TensorPart) -> QuantizedWeight | Float8Weight:
    outputs, inputs = part.shape
    form = part.form
    if isinstance(form, GptqForm):
        return read_gptq(source, part.module, form, inputs)
    if isinstance(form, AwqForm):
        return read_awq(source, part.module, form, inputs)
    if isinstance(form, IntegerForm):
        return read_integers(source, part.module, form, outputs, inputs)
    assert isinstance(form, Float8Form)
    values = source.stored(f"{part.module}.weight").clone()
    block = (form.rows or outputs, form.columns or inputs)
    scales = source.stored(f"{part.module}.{form.scale}").clone()
    return Float8Weight(values, scales.reshape(-(-outputs // block[0]), -(-inputs // block[1])), block)
