"""Field types of the LLMService models, with what the CRD and error messages need to know about each.

Every string and list carries an upper bound: the API server refuses CEL rules whose worst case it cannot bound.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    StringConstraints,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from blade_operator.spec.quantity import BYTES_PATTERN, DURATION_PATTERN, QUANTITY_PATTERN


class Record(BaseModel):
    """Base of all models: camelCase on the outside, no unknown fields, no silent conversion, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel)


@dataclass(frozen=True, slots=True)
class Hint:
    """Describes the form of a string, for the message when it does not match its pattern."""

    text: str


@dataclass(frozen=True, slots=True)
class ListType:
    """How lists merge on the API server: ``set``, or ``map`` by a key. Both forbid duplicates."""

    kind: Literal["set", "map"]
    key: str = ""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        schema["x-kubernetes-list-type"] = self.kind
        if self.key:
            schema["x-kubernetes-list-map-keys"] = [self.key]
        return schema


@dataclass(frozen=True, slots=True)
class IntOrString:
    """Gives a field the API's int-or-string schema."""

    pattern: str
    minimum: int

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": self.pattern,
            "minimum": self.minimum,
            "maxLength": 32,
        }


@dataclass(frozen=True, slots=True)
class Preserved:
    """An object the API server stores as it is, without knowing its fields."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _quantity(pattern: str, minimum: int, example: str) -> Callable[[Any], int | str]:
    def validate(value: Any) -> int | str:
        if isinstance(value, int) and not isinstance(value, bool) and value >= minimum:
            return value
        if isinstance(value, str) and len(value) <= 32 and re.fullmatch(pattern[1:-1], value):
            return value
        raise ValueError(f"must be a quantity like {example}, not {describe(value)}")

    return validate


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    keys = [getattr(value, "name", value) for value in values]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"{key} is listed more than once")
    return values


def describe(value: object) -> str:
    """Describes ``value`` in terms of YAML: ``the string "two"``, ``a list``, ``true``."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return f'the string "{value if len(value) <= 60 else value[:57] + "..."}"'
        case int() | float():
            return str(value)
        case dict():
            return "an object"
        case list() | tuple():
            return "a list"
    return repr(value)


Unique = AfterValidator(_unique)

Quantity = Annotated[
    int | str, PlainValidator(_quantity(QUANTITY_PATTERN, 0, "2, 500m or 4Gi")), IntOrString(QUANTITY_PATTERN, 0)
]
Bytes = Annotated[int | str, PlainValidator(_quantity(BYTES_PATTERN, 1, "512Mi or 4Gi")), IntOrString(BYTES_PATTERN, 1)]
Duration = Annotated[
    str,
    StringConstraints(pattern=DURATION_PATTERN, min_length=2, max_length=16),
    Hint("a duration like 30s, 10m or 1h30m"),
]
Fraction = Annotated[
    str,
    StringConstraints(pattern=r"^(0?\.[0-9]*[1-9][0-9]*|1(\.0*)?)$", max_length=16),
    Hint('a string of a number above 0 and at most 1, like "0.9"'),
]
Image = Annotated[
    str,
    StringConstraints(pattern=r"^([a-zA-Z0-9][a-zA-Z0-9./:@_-]*)?$", max_length=512),
    Hint("an image reference like example.org/team/engine:1.0"),
]
_LabelValue = Annotated[
    str,
    StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63),
    Hint("a label value: letters, digits and - _ . inside"),
]
Labels = Annotated[dict[str, _LabelValue], Field(max_length=64)]
Annotations = Annotated[dict[str, Annotated[str, StringConstraints(max_length=4096)]], Field(max_length=64)]
SecretKey = Annotated[
    str,
    StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$", min_length=1, max_length=253),
    Hint("a key of letters, digits and - _ ."),
]
ObjectName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", min_length=1, max_length=253),
    Hint("a Kubernetes object name: lower case letters, digits, '-' and '.'"),
]
