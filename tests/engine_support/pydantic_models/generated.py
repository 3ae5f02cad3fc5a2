"""Models made of random parts, always the same."""

from __future__ import annotations

import datetime
import random
import uuid
from enum import Enum
from typing import Annotated, Any, Final, Literal, Union

from pydantic import BaseModel, Field, create_model

_SEED: Final = 24
_DEPTH: Final = 3
_NAMES: Final = (
    "name",
    "kind",
    "count",
    "größe",
    "is_set",
    "items",
    "x1",
    "note",
    "user id",
    "value",
    "class",
    "_x".strip("_"),
)
_SCALARS: Final[tuple[Any, ...]] = (str, int, float, bool, datetime.date, datetime.datetime, uuid.UUID, None)


def generated_models(count: int) -> dict[str, type[BaseModel]]:
    """``count`` models; equal calls make equal models."""
    found = {}
    for number in range(count):
        maker = _Maker(random.Random(f"{_SEED} {number}"), f"Made{number}")
        found[f"Made{number}"] = maker.model(_DEPTH)
    return found


class _Maker:
    def __init__(self, rng: random.Random, name: str) -> None:
        self._rng = rng
        self._name = name
        self._made: list[type[BaseModel]] = []
        self._enums = 0

    def model(self, depth: int) -> type[BaseModel]:
        fields: dict[str, Any] = {}
        for number in range(self._rng.randrange(1, 6)):
            kind = self._type(depth - 1)
            alias = self._rng.choice(_NAMES)
            default: Any = ... if self._rng.random() < 0.6 else None
            if default is None:
                kind = Union[kind, None]  # noqa: UP007 -- None | None is no type
            details = {"description": "what it is"} if self._rng.random() < 0.3 else {}
            fields[f"f{number}"] = (kind, Field(default, alias=f"{alias}{number}", **details))
        extra = self._rng.choice(["ignore", "ignore", "forbid"])
        made: type[BaseModel] = create_model(f"{self._name}_{len(self._made)}", __config__={"extra": extra}, **fields)
        self._made.append(made)
        return made

    def _type(self, depth: int) -> Any:
        makers = [self._scalar, self._bounded, self._enum, self._literal]
        if depth > 0:
            makers += [
                self._list,
                self._list,
                self._dict,
                self._union,
                self._tuple,
                self._set,
                self._nested,
                self._nested,
            ]
        return self._rng.choice(makers)(depth)

    def _scalar(self, depth: int) -> Any:
        return self._rng.choice(_SCALARS)

    def _bounded(self, depth: int) -> Any:
        least = self._rng.randrange(-20, 20)
        most = least + self._rng.randrange(1, 100)
        length = self._rng.randrange(4)
        return self._rng.choice(
            [
                Annotated[int, Field(ge=least, le=most)],
                Annotated[int, Field(gt=least)],
                Annotated[float, Field(ge=least, lt=most)],
                Annotated[str, Field(min_length=length, max_length=length + 5)],
                Annotated[str, Field(pattern=self._rng.choice(["^[A-Z]{2}$", r"^\d{3}-\d{2}$", "^(on|off)$", "^x+"]))],
            ]
        )

    def _enum(self, depth: int) -> Any:
        self._enums += 1
        values = self._rng.sample(["red", "green", "ä ö", 'quo"te', "", "1", "true"], self._rng.randrange(1, 5))
        return Enum(f"{self._name}_Enum{self._enums}", {f"M{number}": value for number, value in enumerate(values)})

    def _literal(self, depth: int) -> Any:
        values = self._rng.sample(["a", "b", "c d", 0, 1, 42, True, None], self._rng.randrange(1, 4))
        return Literal[tuple(values)]

    def _list(self, depth: int) -> Any:
        inner, least = self._type(depth - 1), self._rng.randrange(2)
        return self._rng.choice(
            [list[inner], Annotated[list[inner], Field(min_length=least, max_length=least + 2)]]  # type: ignore[valid-type]
        )

    def _dict(self, depth: int) -> Any:
        key = self._rng.choice([str, str, Annotated[str, Field(pattern="^[a-z]{1,4}$")], Literal["a", "b"], uuid.UUID])
        return dict[key, self._type(depth - 1)]  # type: ignore[misc]

    def _union(self, depth: int) -> Any:
        found = self._type(depth - 1)
        for _ in range(self._rng.randrange(1, 3)):
            found = Union[found, self._type(depth - 1)]  # noqa: UP007 -- None | None is no type
        return found

    def _tuple(self, depth: int) -> Any:
        return tuple[tuple(self._type(depth - 1) for _ in range(self._rng.randrange(1, 4)))]  # type: ignore[misc]

    def _set(self, depth: int) -> Any:
        return set[self._rng.choice([self._enum, self._literal, self._bounded])(0)]

    def _nested(self, depth: int) -> Any:
        if self._made and self._rng.random() < 0.2:
            return self._rng.choice(self._made)
        return self.model(depth)
