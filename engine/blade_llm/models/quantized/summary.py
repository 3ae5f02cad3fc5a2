"""What a quantised checkpoint computes, in words: for the log and for ``blade_llm_check``. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from blade_llm.spec.quantization.weights import GROUP_PART, ActivationForm, Float8Form, IntegerForm, WeightForm
from blade_llm.spec.tensors import LinearPart, TensorMap


def describe(tensors: TensorMap) -> str:
    """How many linear layers are quantised and how, and what becomes of activations; empty where none is."""
    parts = _quantized(tensors)
    if not parts:
        return ""
    kinds = sorted({part.form.label for part in parts if part.form is not None})
    labels = Counter(activations.label for part in parts if (activations := _activations(part)) is not None)
    rounded = ", ".join(f"in {count} of them to {label}" for label, count in sorted(labels.items()))
    table = "" if tensors.table is None else f"; the embedding table is, too ({tensors.table.form.label})"
    return (
        f"{len(parts)} linear layers are quantised in the checkpoint ({', '.join(kinds)}); activations are "
        f"{f'rounded {rounded}' if rounded else 'not'}{table}"
    )


def unrounded(tensors: TensorMap) -> list[str]:
    """Which rounding of activations the checkpoint asks for that is not computed, one sentence for each kind."""
    forms = [part.form for part in _quantized(tensors)]
    why = Counter(form.unrounded for form in forms if isinstance(form, IntegerForm | Float8Form) and form.unrounded)
    return [
        f"activations of {count} linear layers are not rounded, though the checkpoint says how ({reason}): this is not "
        "computed here, and the layers are as precise as their weights"
        for reason, count in sorted(why.items())
    ]


def describe_path(tensors: TensorMap) -> str:
    """How fast a path there is on a CPU; empty where no layer is quantised."""
    parts = _quantized(tensors)
    if not parts:
        return ""
    slow = sum(any(size % GROUP_PART and size < part.wanted_inputs for size in _groups(part.form)) for part in parts)
    if not slow:
        return "native kernels multiply all of them as they are, on a CPU in bf16"
    return (
        f"native kernels multiply {len(parts) - slow} of them as they are, on a CPU in bf16; {slow}, in groups that "
        f"are no multiple of {GROUP_PART} inputs, become floats each time, which is many times slower for few tokens"
    )


def _quantized(tensors: TensorMap) -> list[LinearPart]:
    return [part for part in tensors.linear_parts() if part.form is not None]


def _activations(part: LinearPart) -> ActivationForm | None:
    return part.form.activations if isinstance(part.form, IntegerForm | Float8Form) else None


def _groups(form: WeightForm | None) -> Iterator[int]:
    """Inputs that share a scale of the weight, and of activations, where not all do."""
    if isinstance(form, IntegerForm | Float8Form) and form.activations is not None:
        yield from _given(form.activations.group_size)
    if isinstance(form, Float8Form):
        yield from _given(form.columns)
    elif form is not None:
        yield from _given(form.group_size)


def _given(size: int | None) -> Iterator[int]:
    if size is not None:
        yield size
