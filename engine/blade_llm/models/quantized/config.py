"""``quantization_config`` of a ``config.json``: in which form the checkpoint has the weight of each linear layer. No
torch, for ``blade_llm_check``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.quantized.awq import read_awq
from blade_llm.models.quantized.compressed_tensors import read_compressed_tables, read_compressed_tensors
from blade_llm.models.quantized.float8 import read_fbgemm, read_float8
from blade_llm.models.quantized.gptq import read_gptq
from blade_llm.models.raw_config import RawConfig, text_fields
from blade_llm.spec.quantization.weights import WeightForm
from blade_llm.spec.tensors import EMBEDDING, LinearMap, LinearPart, TensorMap, TensorPart, Variant

FormOf = Callable[[str], WeightForm | None]
"""The form of a module's weight in the checkpoint; None for the plain one."""


@dataclass(frozen=True, slots=True)
class Forms:
    """What a checkpoint says of its modules."""

    linear: FormOf
    table: FormOf
    """Of embedding tables."""


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], FormOf]]] = {
    "gptq": read_gptq,
    "awq": read_awq,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_float8,
    "fbgemm_fp8": read_fbgemm,
}
_TABLE_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], FormOf]]] = {
    "compressed-tensors": read_compressed_tables,
}
"""The other methods have plain tables."""
_KNOWN: Final = ", ".join(_READERS)


def read_forms(raw: RawConfig) -> Forms | None:
    """What ``quantization_config`` says; None without one.

    Raises :class:`UnsupportedModelError` for a method, or a setting of one, that is not read, and ``ValueError`` for
    one that makes no sense.
    """
    found = _config_of(raw)
    if not found:
        return None
    if not isinstance(found, dict):
        raise ValueError(f"'quantization_config' must be a JSON object, not {found!r}")
    method = found.get("quant_method")
    if not isinstance(method, str) or method not in _READERS:
        raise UnsupportedModelError(
            f"quantised checkpoints of kind {method!r} ('quantization_config') are not supported; those of {_KNOWN} "
            "are, and the original, or one converted to bf16"
        )
    tables = _TABLE_READERS.get(method)
    return Forms(_READERS[method](found), (lambda module: None) if tables is None else tables(found))


def require_plain(raw: RawConfig, what: str) -> None:
    """Raises :class:`UnsupportedModelError` for a quantised checkpoint, where models that are ``what`` cannot be."""
    if found := _config_of(raw):
        method = found.get("quant_method") if isinstance(found, dict) else found
        raise UnsupportedModelError(
            f"quantised checkpoints ({method!r}, 'quantization_config') cannot be {what}; take one that "
            "is not quantised"
        )


def _config_of(raw: RawConfig) -> Any:
    """``quantization_config``, which older compressed-tensors checkpoints call ``compression_config``; of some models
    with images it is in ``text_config``."""
    both = raw.fields, text_fields(raw.fields)
    names = ("quantization_config", "compression_config")
    return next((found for fields in both for name in names if (found := fields.get(name))), None)


def quant_problem(tensors: TensorMap, quant: str) -> str | None:
    """Why ``--quant`` does not go with the checkpoint, and what to do; None where it does."""
    if quant == "none" or not tensors.quantized:
        return None
    return f"--quant {quant}: the checkpoint's weights are quantised already ('quantization_config'); leave it out"


def with_forms(tensors: TensorMap, forms: Forms) -> TensorMap:
    """``tensors`` with the forms of all linear layers, and of the embedding table.

    Raises :class:`UnsupportedModelError` for a quantised layer that is not read.
    """
    variant = tensors.variant
    return replace(
        tensors,
        linears={place: _linear(linear, forms.linear) for place, linear in tensors.linears.items()},
        tensors={place: _tensor(place, part, forms) for place, part in tensors.tensors.items()},
        variant=None if variant is None else Variant(variant.names, lambda: with_forms(variant.make(), forms)),
    )


def _tensor(place: str, part: TensorPart, forms: Forms) -> TensorPart:
    if place == EMBEDDING:
        return replace(part, form=forms.table(part.module))
    return replace(part, form=forms.linear(part.module)) if place.endswith(".kv_up") else part


def _linear(linear: LinearMap, forms: FormOf) -> LinearMap:
    return replace(linear, parts=tuple(_part(part, forms) for part in linear.parts))


def _part(part: LinearPart, forms: FormOf) -> LinearPart:
    form = forms(part.module)
    if form is None:
        return part
    if part.transposed or part.unit_rows or part.one_of is not None:
        why = "whose weights are [in, out]" if part.transposed else "with normalised rows"
        if part.one_of is not None:
            why = "with one tensor for all experts of a layer"
        raise UnsupportedModelError(f"{part.module}: quantised checkpoints {why} are not supported")
    return replace(part, form=form)
