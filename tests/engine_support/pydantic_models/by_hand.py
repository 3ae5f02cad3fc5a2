"""Models with structure: nested, recursive, discriminated, generic, inherited."""

from __future__ import annotations

import dataclasses
import datetime
import uuid
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import pydantic.dataclasses
from pydantic import BaseModel, ConfigDict, Discriminator, Field, RootModel, Tag, computed_field, create_model
from typing_extensions import TypedDict

T = TypeVar("T")


class Currency(str, Enum):  # noqa: UP042 -- as many write it
    EUR = "EUR"
    USD = "USD"


class Address(BaseModel):
    """Where somebody lives."""

    street: str
    city: str = Field(description="town or city", examples=["Wien"])
    zip: str = Field(pattern=r"^\d{5}$")
    country: str | None = None


class Person(BaseModel):
    name: str = Field(min_length=1, max_length=20, title="Full name")
    age: int = Field(ge=0, le=150)
    email: str | None = None
    addresses: list[Address] = Field(default_factory=list, max_length=2)


class Company(BaseModel):
    name: str
    founded: datetime.date
    staff: list[Person] = Field(max_length=2)
    boss: Person
    offices: dict[str, Address]


class Node(BaseModel):
    value: int
    children: list[Node] = Field(default_factory=list, max_length=2)


class Linked(BaseModel):
    label: str
    next: Linked | None = None


class Left(BaseModel):
    right: Right | None = None


class Right(BaseModel):
    left: Left | None = None
    weight: float = 1.0


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool


class Fish(BaseModel):
    kind: Literal["fish", "shark"]
    depth: float


class Zoo(BaseModel):
    animals: list[Annotated[Cat | Dog | Fish, Field(discriminator="kind")]] = Field(max_length=3)


class OnePet(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")


def _kind(value: Any) -> str:
    return value.get("kind", "cat") if isinstance(value, dict) else value.kind


class ToldApart(BaseModel):
    pet: Annotated[Annotated[Cat, Tag("cat")] | Annotated[Dog, Tag("dog")], Discriminator(_kind)]


class Plus(BaseModel):
    op: Literal["+"]
    left: Expression
    right: Expression


class Number(BaseModel):
    op: Literal["number"]
    value: int


class Variable(BaseModel):
    op: Literal["variable"]
    name: str


Expression = Annotated[Plus | Number | Variable, Field(discriminator="op")]


class Formula(BaseModel):
    expression: Expression


class Page(BaseModel, Generic[T]):
    items: list[T] = Field(max_length=3)
    total: int
    next_page: int | None = None


class Base(BaseModel):
    id: uuid.UUID
    created: datetime.datetime


class Invoice(Base):
    model_config = ConfigDict(extra="forbid", title="An invoice")

    amount: Decimal = Field(ge=0, json_schema_extra={"x-unit": "EUR"})
    currency: Currency = Currency.EUR
    paid: bool = False


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    known: int


class Annotations(BaseModel):
    model_config = ConfigDict(json_schema_extra={"propertyOrdering": ["b", "a"], "x-order": 1, "$comment": "ours"})

    a: str = Field(deprecated=True, description="old")
    b: int = Field(examples=[1, 2], json_schema_extra={"readOnly": True, "format": "int32", "widget": "slider"})
    c: str = Field("x", json_schema_extra={"format": "color", "contentEncoding": "utf-8", "enumDescriptions": ["?"]})


class Aliased(BaseModel):
    first_name: str = Field(alias="firstName")
    odd: int = Field(alias='a "quoted" / key')


class Ordered(BaseModel):
    total: float

    @computed_field
    def doubled(self) -> float:
        return self.total * 2


@dataclasses.dataclass
class Plain:
    x: int
    y: list[str] = dataclasses.field(default_factory=list)


@pydantic.dataclasses.dataclass
class Checked:
    name: str
    inner: Plain


class Shipment(TypedDict, total=False):
    to: Address
    weight: float


class WithDataclasses(BaseModel):
    plain: Plain
    checked: Checked
    shipment: Shipment


class Tags(RootModel[list[Literal["a", "b", "c"]]]):
    pass


class Table(RootModel[dict[str, Person]]):
    pass


class Choice(RootModel[Cat | Dog | None]):
    pass


class Steps(BaseModel):
    """As in OpenAI's guide."""

    class Step(BaseModel):
        explanation: str
        output: str

    steps: list[Step]
    final_answer: str


class Deep(BaseModel):
    cube: list[list[list[int]]]
    maps: dict[str, dict[str, list[bool | None]]]
    pairs: list[tuple[str, int]]
    either: list[int] | dict[str, int] | str


class Defaults(BaseModel):
    number: int = 3
    text: str = "x"
    items: list[int] = [1, 2]
    color: Literal["red", "blue"] = "red"
    nested: Address = Address(street="s", city="c", zip="12345")


class Described(BaseModel):
    home: Address = Field(description="the home")
    work: Address | None = Field(None, description="the office", title="Office")
    currency: Currency = Field(description="of the bill")


_NAMES: Final = (
    Address, Person, Company, Node, Linked, Left, Zoo, OnePet, ToldApart, Formula, Invoice, Open, Annotations, Aliased,
    Ordered, WithDataclasses, Table, Steps, Deep, Defaults, Described, Page[int], Page[Address], Page[Page[Currency]],
)  # fmt: skip
BY_HAND: Final[dict[str, type[BaseModel]]] = {
    **{model.__name__: model for model in _NAMES},
    "Tags": create_model("WithTags", tags=(Tags, ...)),
    "Choice": create_model("WithChoice", choice=(Choice, ...)),
    "Empty": create_model("Empty"),
    "Wide": create_model("Wide", **{f"field_{number}": (int | None, None) for number in range(40)}),  # type: ignore[call-overload]
}
