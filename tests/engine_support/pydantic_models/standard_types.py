"""One model for each type of the standard library and of pydantic, bounds and all."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import ipaddress
import pathlib
import re
import uuid
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, NotRequired

import pydantic
from pydantic import BaseModel, Field, Json, StringConstraints, create_model
from typing_extensions import TypedDict


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Flag(enum.StrEnum):
    A = "a"
    B = 'b "quoted"'


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Movie(TypedDict):
    name: str
    year: NotRequired[int]


_FIELDS: Final[dict[str, Any]] = {
    "string": str, "integer": int, "floating": float, "boolean": bool, "nothing": None, "anything": Any,
    "optional": int | None, "either": int | str | None, "literal": Literal["a", 1, True, None],
    "color": Color, "level": Level, "flag": Flag, "one_of_two": Literal["x", "y"],
    "date": datetime.date, "moment": datetime.datetime, "time": datetime.time, "delta": datetime.timedelta,
    "aware": pydantic.AwareDatetime, "naive": pydantic.NaiveDatetime,
    "past_date": pydantic.PastDate, "future_moment": pydantic.FutureDatetime,
    "decimal": decimal.Decimal, "money": Annotated[decimal.Decimal, Field(max_digits=8, decimal_places=2, ge=0)],
    "rate": Annotated[decimal.Decimal, Field(multiple_of=decimal.Decimal("0.05"))],
    "complex": complex, "fraction": fractions.Fraction, "byte_size": pydantic.ByteSize,
    "bytes": bytes, "base64_bytes": pydantic.Base64Bytes, "base64_text": pydantic.Base64Str,
    "base64url_bytes": pydantic.Base64UrlBytes, "base64url_text": pydantic.Base64UrlStr,
    "any_uuid": uuid.UUID,
    **{f"uuid{version}": getattr(pydantic, f"UUID{version}") for version in (1, 3, 4, 5, 6, 7, 8)},
    "path": pathlib.Path, "pure_path": pathlib.PurePosixPath, "file": pydantic.FilePath,
    "folder": pydantic.DirectoryPath,
    "new_path": pydantic.NewPath,
    "ipv4": ipaddress.IPv4Address, "ipv6": ipaddress.IPv6Address, "ipv4_network": ipaddress.IPv4Network,
    "ipv6_network": ipaddress.IPv6Network, "ipv4_interface": ipaddress.IPv4Interface,
    "ipv6_interface": ipaddress.IPv6Interface, "any_address": pydantic.IPvAnyAddress,
    "any_network": pydantic.IPvAnyNetwork, "any_interface": pydantic.IPvAnyInterface,
    "url": pydantic.AnyUrl, "http_url": pydantic.HttpUrl, "file_url": pydantic.FileUrl,
    "web_socket": pydantic.WebsocketUrl,
    "postgres": pydantic.PostgresDsn, "redis": pydantic.RedisDsn,
    "secret": pydantic.SecretStr, "secret_bytes": pydantic.SecretBytes, "expression": re.Pattern,
    "imported": pydantic.ImportString,
    "json": Json, "json_numbers": Json[list[int]],
    "json_table": Json[dict[str, float | None]], "json_color": Json[Color],
    "json_movie": Json[Movie],
    "numbers": set[int], "words": frozenset[str], "colors": set[Color],
    "letters": frozenset[Literal["a", "b", "c", "d", "e"]],
    "flags": set[bool], "two_colors": Annotated[set[Color], Field(min_length=2, max_length=2)],
    "queue": collections.deque[int], "pair": tuple[int, str], "many": tuple[int, ...], "nothing_in_it": tuple[()],
    "point": Point, "movie": Movie, "sequence": Sequence[int], "iterable": Iterable[int], "hashable": Hashable,
    "some": Annotated[list[int], Field(min_length=1, max_length=3)],
    "table": dict[str, int], "mapping": Mapping[str, bool],
    "counter": collections.Counter[str], "ordered": collections.OrderedDict[str, int],
    "lists": collections.defaultdict[str, list[int]], "by_integer": dict[int, str], "by_float": dict[float, str],
    "by_uuid": dict[uuid.UUID, int], "by_date": dict[datetime.date, int], "by_color": dict[Color, int],
    "by_literal": dict[Literal["a", "b"], int | None], "by_address": dict[ipaddress.IPv4Address, str],
    "by_pattern": dict[Annotated[str, Field(pattern="^[a-c]{1,3}$")], int],
    "by_length": dict[Annotated[str, Field(min_length=2, max_length=3)], int],
    "some_keys": Annotated[dict[str, int], Field(min_length=1, max_length=1)],
    "half": Annotated[float, Field(multiple_of=0.5)], "third": Annotated[int, Field(multiple_of=3)],
    "inside": Annotated[float, Field(gt=0, lt=1)], "age": Annotated[int, Field(ge=0, le=150)],
    "finite": pydantic.FiniteFloat, "positive": pydantic.PositiveInt, "negative": pydantic.NegativeFloat,
    "strict": pydantic.StrictInt, "code": Annotated[str, Field(min_length=3, max_length=5, pattern="^x")],
    "lower": Annotated[str, StringConstraints(to_lower=True, strip_whitespace=True)],
    "slug": Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$")],
}  # fmt: skip

STANDARD: Final[dict[str, type[BaseModel]]] = {
    name: create_model(f"With_{name}", value=(kind, ...))  # type: ignore[call-overload]
    for name, kind in _FIELDS.items()
}

STRICTER_THAN_THEIR_SCHEMA: Final = frozenset(
    {
        "finite", "fraction", "decimal", "money", "rate", "complex", "byte_size", "base64_text", "base64url_text",
        "naive", "past_date", "future_moment", "file", "folder", "new_path", "url", "http_url", "file_url",
        "web_socket", "postgres", "redis", "expression", "imported", "by_integer", "by_float", "hashable", "Invoice",
    }
)  # fmt: skip
"""Models that refuse some of what the schema they write of themselves allows: a file has to exist, a date to come, a
number to be finite. Their outputs follow the schema."""
