"""Fields of ``quantization_config``, each with its check."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec

from blade_llm.models.errors import UnsupportedModelError

Fields = TypeVar("Fields", bound=msgspec.Struct)


def parse(fields: Mapping[str, Any], kind: type[Fields]) -> Fields:
    """``fields`` as ``kind``; others are ignored, null counts as absent. Raises ``ValueError``."""
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"'quantization_config': {error}") from None


def group_size_of(value: int | None) -> int | None:
    """Inputs that share a scale; None for all of a row, which is -1 in files. Raises ``ValueError``."""
    if value is None or value == -1:
        return None
    if value < 1:
        raise ValueError(f"'quantization_config': 'group_size' must be positive, or -1 for whole rows, not {value}")
    return value


def require_bits(bits: int, allowed: tuple[int, ...], method: str) -> int:
    """``bits``, if the method has them. Raises :class:`UnsupportedModelError`."""
    if bits not in allowed:
        raise UnsupportedModelError(
            f"{method} with {bits} bits ('quantization_config') is not supported; {', '.join(map(str, allowed))} are"
        )
    return bits


def is_named(module: str, names: Collection[str]) -> bool:
    """Whether a module is, or is inside of, one of those that are named whole or by a part between dots."""
    return any(f".{name}." in f".{module}." for name in names)
