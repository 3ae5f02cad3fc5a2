"""Fields of ``quantization_config``, each with its check."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

import msgspec
import regex

from blade_llm.models.errors import UnsupportedModelError

Fields = TypeVar("Fields", bound=msgspec.Struct)

MAX_PATTERN: Final = 2000
"""Characters of a regular expression. Lists of layers by number have a few hundred."""
MATCH_SECONDS: Final = 1.0
"""Given to each match; real ones take microseconds."""


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


def matcher_of(pattern: str, named: str) -> Callable[[str], bool]:
    """Whether a regular expression matches the beginning of a module's name.

    Anybody may have written it: one that is too long, or none, raises ``ValueError``, and so does a match that takes
    too long. ``named``: how errors begin.
    """
    if len(pattern) > MAX_PATTERN:
        raise ValueError(
            f"'quantization_config': {named[:80]}… a regular expression of {len(pattern)} characters; at most "
            f"{MAX_PATTERN} are read"
        )
    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"'quantization_config': {named} no regular expression: {error}") from None

    def matches(module: str) -> bool:
        try:
            return compiled.match(module, timeout=MATCH_SECONDS) is not None
        except TimeoutError:
            raise ValueError(
                f"'quantization_config': {named} a regular expression that takes more than {MATCH_SECONDS:g} s to "
                f"match {module!r}; write a simpler one"
            ) from None

    return matches
