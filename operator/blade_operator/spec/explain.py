"""Explains a validation error in one line that names the field by path and says what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from blade_operator.spec.errors import Problem
from blade_operator.spec.fields import LLMServiceSpec
from blade_operator.spec.types import Hint, describe

Location = tuple[str | int, ...]


def explain(error: Mapping[str, Any], root: type[BaseModel] = LLMServiceSpec) -> Problem:
    """One of pydantic's error records about ``spec``, as a `Problem`; ``root`` is the model of ``spec``."""
    location: Location = tuple(error["loc"])
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "extra_forbidden":
        parent = _descend(location[:-1], root)
        known = [info.alias or name for name, info in parent.model_fields.items()] if parent else []
        return unknown_field(("spec", *location[:-1]), str(location[-1]), known)
    path = dotted(("spec", *location))
    match kind:
        case "missing":
            return Problem(path, "is required")
        case "literal_error":
            allowed = [choice.strip("'") for choice in context["expected"].replace(" or ", ", ").split(", ")]
            advice = "; put it in quotes" if isinstance(value, bool) else ""
            if near := nearest(value, allowed) if isinstance(value, str) else None:
                advice = f"; did you mean {near}?"
            return Problem(path, f"must be one of {', '.join(allowed)}, not {describe(value)}{advice}")
        case "int_type":
            return Problem(path, f"must be an integer, not {describe(value)}")
        case "string_type":
            advice = "; put it in quotes" if isinstance(value, int | float) else ""
            return Problem(path, f"must be a string, not {describe(value)}{advice}")
        case "tuple_type":
            return Problem(path, f"must be a list, not {describe(value)}")
        case "bool_type":
            return Problem(path, f"must be true or false, not {describe(value)}")
        case "model_type" | "model_attributes_type" | "dict_type":
            return Problem(path, f"must be an object, not {describe(value)}")
        case "greater_than_equal":
            return Problem(path, f"must be at least {context['ge']}, not {value}")
        case "less_than_equal":
            return Problem(path, f"must be at most {context['le']}, not {value}")
        case "string_pattern_mismatch" | "string_too_short":
            return Problem(path, f"must be {_hint(location, root) or 'longer'}, not {describe(value)}")
        case "string_too_long":
            return Problem(path, f"must be at most {context['max_length']} characters, not {len(value)}")
        case "too_long":
            return Problem(path, f"must have at most {context['max_length']} items, not {context['actual_length']}")
        case "too_short":
            return Problem(path, f"must have at least {context['min_length']} item, not 0")
        case "value_error":
            return Problem(path, str(context["error"]))
    return Problem(path, error["msg"])


def unknown_field(parent: Location, name: str, known: Sequence[str]) -> Problem:
    """``name`` is not among ``known``: the nearest one there, else the same name elsewhere in the spec."""
    path = dotted((*parent, name))
    if near := nearest(name, known):
        return Problem(path, f"unknown field; did you mean {near}?")
    for other in _paths(LLMServiceSpec, "spec"):
        if _plain(other.rpartition(".")[2]) == _plain(name):
            return Problem(path, f"unknown field; did you mean {other}?")
    return Problem(path, f"unknown field; known here: {', '.join(known)}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The entry of ``known`` that ``name`` was probably meant to be; case, ``_`` and ``-`` do not count."""
    by_plain = {_plain(entry): entry for entry in known}
    matches = difflib.get_close_matches(_plain(name), by_plain, n=1, cutoff=0.6)
    return by_plain[matches[0]] if matches else None


def dotted(location: Location) -> str:
    """``("spec", "env", 0, "name")`` → ``spec.env[0].name``."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _paths(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, info in model.model_fields.items():
        path = f"{prefix}.{info.alias or name}"
        yield path
        if child := model_of(info.annotation):
            yield from _paths(child, path)


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The model an annotation is, or is an optional or a list of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        if found := model_of(argument):
            return found
    return None


def _field(location: Location, root: type[BaseModel]) -> FieldInfo | None:
    model: type[BaseModel] | None = root
    info = None
    for step in location:
        if isinstance(step, int) or (model is None and info is not None):
            continue  # an item of a list or a map: its field speaks for it
        info = next((i for n, i in model.model_fields.items() if (i.alias or n) == step), None) if model else None
        model = model_of(info.annotation) if info else None
    return info


def _descend(location: Location, root: type[BaseModel]) -> type[BaseModel] | None:
    if not location:
        return root
    info = _field(location, root)
    return model_of(info.annotation) if info else None


def _hint(location: Location, root: type[BaseModel]) -> str | None:
    info = _field(location, root)
    if info is None:
        return None
    for found in (*info.metadata, *_metadata(info.annotation)):
        if isinstance(found, Hint):
            return found.text
    return None


def _metadata(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Annotated:
        yield from annotation.__metadata__
    for argument in get_args(annotation):
        yield from _metadata(argument)
