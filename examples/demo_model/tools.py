"""Functions for the model to call, as clients declare them: by kind, under many names, with schemas in many ways."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import wordings
from .conversations import UNKNOWN_ANSWER, invented_name
from .corpus import Fact

CITIES = ["Paris", "London", "Berlin", "Rome", "Madrid", "Tokyo", "Oslo", "Boston", "San Francisco", "New York"]
_SKIES = ["sunny", "cloudy", "rainy", "windy", "foggy", "clear"]


@dataclass(frozen=True)
class Call:
    """A question that one function answers."""

    question: str
    values: tuple[str | int, ...]
    """Its arguments, in order."""
    result: str
    answer: str


@dataclass(frozen=True)
class Family:
    """One kind of function."""

    signatures: list[tuple[str, tuple[str, ...]]]
    """Names, and those of the parameters; often used ones stand twice."""
    type: str
    """Of the parameters, in JSON Schema."""
    about: list[str]
    """What its description says; `{0}` is a parameter."""
    call: Callable[[random.Random, list[Fact]], Call] | None = None
    """None: it is only ever declared."""


def declared(family: Family, rng: random.Random) -> dict[str, Any]:
    """A function of this family as some client would declare it."""
    name, names = rng.choice(family.signatures)
    kind = {"integer": rng.choice(["integer", "integer", "number"])}.get(family.type, family.type)
    said, titled = rng.random() < 0.35, rng.random() < 0.2
    properties = {each: _property(each, kind, said, titled, rng) for each in names}
    if family.type == "string" and len(names) == 1 and rng.random() < 0.1:
        properties["unit"] = {"type": "string", "enum": ["celsius", "fahrenheit"]}
    parts: list[tuple[str, Any]] = [("type", "object"), ("properties", properties), ("required", list(names))]
    if rng.random() < 0.4:
        parts.append(("additionalProperties", False))
    if titled and rng.random() < 0.6:
        parts.insert(rng.choice([0, 2, 3]), ("title", rng.choice([name, f"{name}_args", f"{name}Arguments"])))
    elif rng.random() < 0.25:
        parts = [*parts[1:], parts[0]]  # "type" last, as pydantic writes it
    function: dict[str, Any] = {"name": name}
    if rng.random() < 0.93:
        about = rng.choice(family.about).format(*names)
        function["description"] = about.rstrip(".") if rng.random() < 0.5 else about
    function["parameters"] = dict(parts)
    return {"type": "function", "function": function}


def _property(name: str, kind: str, said: bool, titled: bool, rng: random.Random) -> dict[str, Any]:
    parts: list[tuple[str, Any]] = [("type", kind)]
    if said:
        text = rng.choice(
            ["The {0}", "The {0}.", "{0}", "Name of the {0}", "The {0} to use", "The {0}, for example {1}"]
        )
        parts.append(("description", text.format(name, rng.choice(CITIES) if kind == "string" else "2")))
    if titled:
        parts.insert(rng.choice([0, 1]), ("title", name.replace("_", " ").title()))
    if kind == "string" and rng.random() < 0.12:
        parts.append(("maxLength", rng.choice([20, 32, 40, 64, 100])))
    return dict(parts)


def _documented(rng: random.Random, facts: list[Fact]) -> Call:
    functions = [fact for fact in facts if fact.kind == "function"]
    fact = rng.choice(functions if rng.random() < 0.75 else facts)
    name, answer = fact.name, fact.answer
    _, verb, told = answer.partition(" returns ")
    result = f"Return {told}" if verb and rng.random() < 0.5 else rng.choice([answer, answer, f"{name} is documented"])
    if rng.random() < 0.08:
        name = invented_name(rng)
        result, answer = rng.choice([f"there is no {name}", f"{name}: nothing found"]), UNKNOWN_ANSWER
    written = f"{name}()" if fact.kind == "function" and rng.random() < 0.25 else name
    return Call(rng.choice(wordings.LOOKUPS).format(written), (name,), result, answer)


def _weather(rng: random.Random, facts: list[Fact]) -> Call:
    city, sky, degrees = rng.choice(CITIES), rng.choice(_SKIES), rng.randint(0, 39)
    result, answer = rng.choice(
        [
            (f"{sky}, {degrees} °C", f"{sky}, {degrees} °C."),
            (f"{degrees} degrees and {sky}", f"{sky}, {degrees} °C."),
            (f"It is {sky} in {city}.", f"{sky}."),
            (sky, f"{sky}."),
        ]
    )
    return Call(rng.choice(wordings.WEATHERS).format(city), (city,), result, f"The weather in {city}: {answer}")


def _sum(rng: random.Random, facts: list[Fact]) -> Call:
    a, b = rng.randint(0, 9), rng.randint(0, 9)
    return Call(rng.choice(wordings.SUMS).format(a, b), (a, b), str(a + b), f"The result is {a + b}.")


def _family(
    signatures: str, type_: str, about: str, call: Callable[[random.Random, list[Fact]], Call] | None = None
) -> Family:
    """Signatures by spaces, descriptions by lines."""
    split = (signature.rstrip(")").split("(") for signature in signatures.split())
    lines = [line.strip() for line in about.strip().splitlines()]
    return Family([(name, tuple(parameters.split(","))) for name, parameters in split], type_, lines, call)


FAMILIES = [
    LOOKUP := _family(
        "lookup(name) lookup(name) get_doc(function) search_docs(query)",
        "string",
        """
        Look up a built-in function in Python's documentation.
        Look a built-in function up in Python's documentation.
        Search the documentation.
        Get the documentation of a Python function.
        What a Python function does.
        """,
        _documented,
    ),
    WEATHER := _family(
        "get_weather(city) get_weather(city) get_current_weather(location)",
        "string",
        """
        Get the weather in a city.
        Get the current weather.
        Get the current weather in a given {0}.
        The weather of a city.
        """,
        _weather,
    ),
    ADD := _family(
        "add(a,b)",
        "integer",
        """
        Add two numbers.
        Add two integers.
        Adds {0} and {1}.
        """,
        _sum,
    ),
    _family("send_email(to,subject)", "string", "Send an email."),
    _family("read_file(path)", "string", "Read a file."),
    _family("run_command(command)", "string", "Run a command."),
]


def questions() -> list[str]:
    """All wordings in which something is asked that a function answers; `{}` is what it is asked about."""
    return [*wordings.LOOKUPS, *wordings.WEATHERS, *wordings.SUMS]
