"""Fields inside of fields: the keys of objects that a request's type describes, wherever it has some."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from blade_llm.api.common.response_notes import check_keys


def check_nested(raw: dict[str, Any], kind: type[msgspec.Struct], within: str = "") -> None:
    """Record (or refuse) the unknown keys of the objects below ``raw``, a ``kind`` as JSON has it.

    What has a wrong type is left to the decoder, which has the better error.
    """
    for name, structs in _nested(kind).items():
        if name in raw:
            _check(raw[name], structs, f"{within}.{name}" if within else name)


def _check(value: Any, structs: tuple[type[msgspec.Struct], ...], path: str) -> None:
    if isinstance(value, list):
        for item in value:
            _check(item, structs, f"{path}[]")
    elif isinstance(value, dict):
        check_keys(value, _keys(structs), path)
        for struct in structs:
            check_nested(value, struct, path)


@functools.cache
def _keys(structs: tuple[type[msgspec.Struct], ...]) -> frozenset[str]:
    return frozenset(field.encode_name for struct in structs for field in msgspec.structs.fields(struct))


@functools.cache
def _nested(kind: type[msgspec.Struct]) -> dict[str, tuple[type[msgspec.Struct], ...]]:
    """Fields of ``kind`` that may hold an object of a known type, or a list of them → the types."""
    found = {field.encode_name: tuple(_structs(field.type)) for field in msgspec.structs.fields(kind)}
    return {name: structs for name, structs in found.items() if structs}


def _structs(annotation: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType, list):
        for argument in get_args(annotation):
            yield from _structs(argument)
    elif origin is Annotated:
        yield from _structs(get_args(annotation)[0])
