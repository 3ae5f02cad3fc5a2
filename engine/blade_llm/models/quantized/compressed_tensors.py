"""What checkpoints in the compressed-tensors format say of themselves (llm-compressor and others write them)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar

import msgspec

from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.quantized.fields import group_size_of, matcher_of, parse, require_bits
from blade_llm.spec.quantization.weights import ActivationForm, Float8Form, IntegerForm, WeightForm

_REGEX: Final = "re:"
_LINEAR: Final = "Linear"
"""What linear layers are called where a class is named."""
_TABLE: Final = "Embedding"
"""The same of tables."""
_CLASSES: Final = (_LINEAR, _TABLE)
_PACKED: Final = "pack-quantized"
_UNPACKED: Final = ("int-quantized", "naive-quantized")
_FLOAT: Final = ("float-quantized", "naive-quantized")
_FORMATS: Final = (_PACKED, *_UNPACKED, "float-quantized")

_GROUPED_BY_ORDER: Final = ("group", "dynamic")


class _Weights(msgspec.Struct, frozen=True):
    num_bits: int = 8
    type: Literal["int", "float"] = "int"
    symmetric: bool = True
    group_size: int | None = None
    strategy: str | None = None
    block_structure: list[int] | str | None = None
    actorder: str | bool | None = None
    """``group`` (or true, or ``dynamic``): inputs are grouped in the order of their activations. ``weight`` (or
    ``static``): they were rounded in that order, which changes nothing of what is stored."""


class _Activations(msgspec.Struct, frozen=True):
    num_bits: int = 8
    type: str = "int"
    symmetric: bool = True
    group_size: int | None = None
    strategy: str | None = None
    dynamic: bool | str = False


class _Group(msgspec.Struct, frozen=True):
    targets: list[str]
    weights: _Weights | None = None
    input_activations: _Activations | None = None
    format: str | None = None


class _CompressedTensors(msgspec.Struct, frozen=True):
    config_groups: dict[str, _Group]
    format: str = "dense"
    ignore: list[str] | None = None
    quantization_status: str = "compressed"
    sparsity_config: dict[str, Any] | None = None
    transform_config: dict[str, Any] | None = None


def read_compressed_tensors(fields: Mapping[str, Any]) -> Callable[[str], WeightForm | None]:
    """The form of each linear layer, by its module.

    Raises :class:`UnsupportedModelError` for what is not read, ``ValueError`` for senseless fields.
    """
    return _read(fields, _LINEAR)


def read_compressed_tables(fields: Mapping[str, Any]) -> Callable[[str], WeightForm | None]:
    """As :func:`read_compressed_tensors`, of embedding tables. Nothing is rounded before a table: its inputs are token
    ids."""
    form_of = _read(fields, _TABLE)

    def of_table(module: str) -> WeightForm | None:
        form = form_of(module)
        return replace(form, activations=None, unrounded="") if isinstance(form, IntegerForm | Float8Form) else form

    return of_table


def _read(fields: Mapping[str, Any], kind: str) -> Callable[[str], WeightForm | None]:
    """The form of each module of a class."""
    config = parse(fields, _CompressedTensors)
    if config.quantization_status not in ("compressed", "frozen"):
        raise UnsupportedModelError(
            f"compressed-tensors with 'quantization_status' {config.quantization_status!r} is not supported; save the "
            "model compressed"
        )
    if config.sparsity_config and config.sparsity_config.get("format", "dense") != "dense":
        raise UnsupportedModelError("compressed-tensors with 'sparsity_config' is not supported")
    if config.transform_config and config.transform_config.get("config_groups"):
        raise UnsupportedModelError("compressed-tensors with 'transform_config' is not supported")
    ignored = [_matcher(target, kind) for target in config.ignore or ()]
    groups = [(group, _form(group, config.format)) for group in config.config_groups.values()]
    # The most specific wins: a name, then a regular expression, then the class.
    rules = sorted(
        ((_rank(target), _matcher(target, kind), form) for group, form in groups for target in group.targets),
        key=lambda rule: rule[0],
    )

    def form_of(module: str) -> WeightForm | None:
        if any(matches(module) for matches in ignored):
            return None
        return next((form for _, matches, form in rules if matches(module)), None)

    return form_of


def _rank(target: str) -> int:
    return 2 if target in _CLASSES else 1 if target.startswith(_REGEX) else 0


def _matcher(target: str, kind: str) -> Callable[[str], bool]:
    if target in _CLASSES:
        return lambda module: target == kind
    if not target.startswith(_REGEX):
        return lambda module: module == target
    return matcher_of(target.removeprefix(_REGEX), f"{target!r} is")


def _form(group: _Group, common: str) -> WeightForm | None:
    weights, form = group.weights, group.format or common
    if weights is None:
        return None
    if form not in _FORMATS:
        raise UnsupportedModelError(
            f"compressed-tensors' 'format' {form!r} is not supported; {', '.join(map(repr, _FORMATS))} are"
        )
    strategy = weights.strategy or ("tensor" if weights.group_size is None else "group")
    if strategy == "group" and weights.group_size == -1:
        strategy = "channel"
    if strategy == "group" and weights.group_size is None:
        raise ValueError("'quantization_config': 'strategy' 'group' without 'group_size', which it needs")
    if weights.type == "float":
        return _rounding(_float_form(weights, form, strategy), group.input_activations)
    if form not in (_PACKED, *_UNPACKED):
        raise UnsupportedModelError(f"compressed-tensors' 'format' {form!r} with integers is not supported")
    allowed = tuple(range(2, 9)) if form == _PACKED else (8,)
    bits = require_bits(weights.num_bits, allowed, f"compressed-tensors ({form})")
    size = group_size_of(weights.group_size) if strategy == "group" else None
    found: IntegerForm | None = None
    if strategy == "tensor":
        found = IntegerForm(bits, form == _PACKED, "tensor", None, weights.symmetric)
    if strategy == "channel":
        found = IntegerForm(bits, form == _PACKED, "channel", None, weights.symmetric)
    if strategy == "group" and size is not None:
        act_order = weights.actorder is True or str(weights.actorder).lower() in _GROUPED_BY_ORDER
        found = IntegerForm(bits, form == _PACKED, "group", size, weights.symmetric, act_order)
    if found is not None:
        return _rounding(found, group.input_activations)
    raise _unknown_strategy(strategy, "integers", "'tensor', 'channel' and 'group'")


_Form = TypeVar("_Form", IntegerForm, Float8Form)


def _rounding(form: _Form, given: _Activations | None) -> _Form:
    """``form`` with its activations; what is not computed here is noted, and the weights are read all the same."""
    if given is None:
        return form
    kind: Literal["int8", "fp8"] = "int8" if isinstance(form, IntegerForm) else "fp8"
    if why := _not_rounded(form, given):
        return replace(form, unrounded=why)
    if not given.dynamic:
        return replace(form, activations=ActivationForm(kind, "input_scale"))
    # One scale for all tokens of a step would make a token's result depend on the others: each has its own.
    size = group_size_of(given.group_size) if given.strategy == "group" else None
    return replace(form, activations=ActivationForm(kind, None, size))


def _not_rounded(form: IntegerForm | Float8Form, given: _Activations) -> str:
    """What of ``given`` is not computed; empty where all is."""
    integers = isinstance(form, IntegerForm)
    if given.num_bits != 8 or given.type != ("int" if integers else "float"):
        return f"{given.type} of {given.num_bits} bits, with weights of {'integers' if integers else 'floats'}"
    if not given.symmetric:
        return "with zero points"
    if isinstance(form, IntegerForm) and (form.bits != 8 or form.strategy == "group" or not form.symmetric):
        return "int8, with weights that are in groups, asymmetric or not of 8 bits"
    allowed = (None, "tensor") if given.dynamic is False else (None, "token", "tensor")
    if given.dynamic is True and not integers:
        allowed = (*allowed, "group")
    if given.strategy in allowed and given.dynamic in (True, False):
        return ""
    return f"'strategy' {given.strategy!r} with 'dynamic' {given.dynamic!r}"


def _float_form(weights: _Weights, form: str, strategy: str) -> Float8Form:
    if form not in _FLOAT or weights.num_bits != 8:
        raise UnsupportedModelError(
            f"compressed-tensors' 'format' {form!r} with floats of {weights.num_bits} bits is not supported; "
            "'float-quantized' with 8 bits is"
        )
    if strategy == "tensor":
        return Float8Form(None, None)
    if strategy == "channel":
        return Float8Form(1, None)
    if strategy == "group" and (size := group_size_of(weights.group_size)) is not None:
        return Float8Form(1, size)
    if strategy == "block":
        return Float8Form(*_block(weights.block_structure))
    raise _unknown_strategy(strategy, "floats", "'tensor', 'channel', 'group' and 'block'")


def _block(given: list[int] | str | None) -> tuple[int, int]:
    parts = given.split("x") if isinstance(given, str) else given or []
    if len(parts) != 2 or not all(str(part).isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"'quantization_config': 'block_structure' must be two positive integers, not {given!r}")
    return int(parts[0]), int(parts[1])


def _unknown_strategy(strategy: str, of: str, known: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"compressed-tensors' 'strategy' {strategy!r} with {of} ('quantization_config') is not supported; {known} are"
    )
