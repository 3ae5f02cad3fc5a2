"""Quantised weights out of a checkpoint, whatever its form."""

from __future__ import annotations

from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.models.quantized.activations import with_activations
from blade_llm.models.quantized.integers import read_awq, read_gptq, read_integers
from blade_llm.models.quantized.slicing import float8_part, select_rows, under_each_other
from blade_llm.models.quantized.stored_part import StoredPart
from blade_llm.models.weight_source import WeightSource
from blade_llm.spec.quantization.weights import AwqForm, Float8Form, GptqForm, IntegerForm
from blade_llm.spec.slices import contiguous_runs
from blade_llm.spec.tensors import TensorPart


def read_quantized(source: WeightSource, part: TensorPart) -> QuantizedWeight | Float8Weight:
    """The rows and columns of a quantised weight that ``part`` wants; of the checkpoint's tensors what
    :meth:`~blade_llm.spec.tensors.TensorPart.blocks` says is read.

    Raises :class:`~blade_llm.models.errors.ModelFilesError` for tensors that contradict each other.
    """
    outputs, inputs = part.shape
    runs, order = ((range(outputs),), None) if part.rows is None else contiguous_runs(part.rows)
    columns = part.columns or range(inputs)
    found = under_each_other([_read(StoredPart(source, part, run, columns), part) for run in runs])
    return with_activations(found if order is None else select_rows(found, order), source, part)


def _read(stored: StoredPart, part: TensorPart) -> QuantizedWeight | Float8Weight:
    form = part.form
    if isinstance(form, GptqForm):
        return read_gptq(stored, form)
    if isinstance(form, AwqForm):
        return read_awq(stored, form)
    if isinstance(form, IntegerForm):
        return read_integers(stored, form)
    assert isinstance(form, Float8Form)
    values, scales = stored.read("weight").clone(), stored.read(form.scale).clone()
    block = form.rows or stored.whole_outputs, form.columns or stored.whole_inputs
    return float8_part(values, scales, block, stored.outputs, stored.inputs)
