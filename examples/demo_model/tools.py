"""Functions for the model to call, as clients declare them: by kind, under many names, with schemas in many ways."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import wordings
from .conversations import invented_name
from .corpus import Fact

_CITIES = """
Paris London Berlin Rome Madrid Oslo Tokyo Vienna Prague Lisbon Athens Dublin Warsaw Helsinki Stockholm Copenhagen
Amsterdam Brussels Zurich Geneva Munich Hamburg Milan Barcelona Moscow Istanbul Cairo Delhi Mumbai Beijing Shanghai
Hangzhou Singapore Sydney Toronto Montreal Boston Chicago Seattle Denver San_Francisco New_York Los_Angeles Hong_Kong
"""
CITIES = [city.replace("_", " ") for city in _CITIES.split()]
CAPITALS = {
    "France": "Paris", "England": "London", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Norway": "Oslo",
    "Japan": "Tokyo", "Austria": "Vienna", "Portugal": "Lisbon", "Greece": "Athens", "Ireland": "Dublin",
    "Poland": "Warsaw", "Finland": "Helsinki", "Sweden": "Stockholm", "Denmark": "Copenhagen", "Belgium": "Brussels",
    "Egypt": "Cairo", "India": "Delhi", "China": "Beijing",
}  # fmt: skip
_SKIES = ["sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "clear", "stormy", "mild", "hot", "cold"]


@dataclass(frozen=True)
class Call:
    """A question that one function answers."""

    question: str
    values: tuple[str | int, ...]
    """Its arguments, in order."""
    result: str
    answer: str
    """Contains the result, word for word."""


@dataclass(frozen=True)
class Family:
    """One kind of function."""

    names: list[str]
    parameters: list[tuple[str, ...]]
    """Ways to call its parameters."""
    type: str
    """Of the parameters, in JSON Schema."""
    about: list[str]
    """What its description says; `{0}` is a parameter."""
    call: Callable[[random.Random, list[Fact]], Call] | None = None
    """None: it is only ever declared."""


def declared(family: Family, rng: random.Random) -> dict[str, Any]:
    """A function of this family as some client would declare it."""
    names = rng.choice(family.parameters)
    kind = {"integer": rng.choice(["integer", "integer", "number"])}.get(family.type, family.type)
    said, titled = rng.random() < 0.35, rng.random() < 0.2
    properties = {name: _property(name, kind, said, titled, rng) for name in names}
    if family.type == "string" and len(names) == 1 and rng.random() < 0.1:
        properties["unit"] = {"type": "string", "enum": ["celsius", "fahrenheit"]}
    name = rng.choice(family.names)
    parts: list[tuple[str, Any]] = [("type", "object"), ("properties", properties), ("required", list(names))]
    if rng.random() < 0.4:
        parts.append(("additionalProperties", False))
    if titled and rng.random() < 0.6:
        parts.insert(rng.choice([0, 2, 3]), ("title", rng.choice([name, f"{name}_args", f"{name}Arguments"])))
    elif rng.random() < 0.25:
        parts = [*parts[1:], parts[0]]  # "type" last, as pydantic writes it
    if not names and rng.random() < 0.6:
        parts = [part for part in parts if part[0] != "required"]
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
    fact = rng.choice(functions if rng.random() < 0.5 else facts)
    name, found = fact.name, [fact.answer, fact.answer, f"{fact.name} is documented"]
    if rng.random() < 0.08:
        name = invented_name(rng)
        found = [f"there is no {name}", f"{name}: nothing found", f"{name} is documented"]
    written = f"{name}()" if fact.kind == "function" and rng.random() < 0.25 else name
    result = _or_other(rng.choice(found), facts, rng)
    return Call(rng.choice(wordings.LOOKUPS).format(written), (name,), result, f"The documentation of {name}: {result}")


def _weather(rng: random.Random, facts: list[Fact]) -> Call:
    city, sky, degrees = rng.choice(CITIES), rng.choice(_SKIES), rng.randint(-9, 39)
    found = [
        f"{sky}, {degrees} °C", f"{degrees} degrees and {sky}", f"It is {sky} in {city}.", f"{sky}",
        f"{degrees}°C, {sky}", f"{degrees} C and {sky} in {city}", f"{sky} and {degrees} degrees",
        f'{{"temperature": {degrees}, "sky": "{sky}"}}', f"It's {degrees} degrees and {sky} in {city}.",
        f"The weather in {city} is {sky}.",
    ]  # fmt: skip
    result = _or_other(rng.choice(found), facts, rng)
    return Call(rng.choice(wordings.WEATHERS).format(city), (city,), result, f"The weather in {city}: {result}")


def _time(rng: random.Random, facts: list[Fact]) -> Call:
    city = rng.choice(CITIES)
    clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    result = _or_other(rng.choice([clock, f"{clock}:00", f"It is {clock} in {city}."]), facts, rng)
    return Call(rng.choice(wordings.TIMES).format(city), (city,), result, f"The time in {city}: {result}")


def _capital(rng: random.Random, facts: list[Fact]) -> Call:
    country = rng.choice(list(CAPITALS))
    result = _or_other(CAPITALS[country], facts, rng)
    return Call(
        rng.choice(wordings.CAPITALS).format(country), (country,), result, f"The capital of {country}: {result}"
    )


def _number(rng: random.Random) -> int:
    return rng.randint(0, 10 ** rng.choice([1, 2, 2, 3]) - 1)


def _sum(rng: random.Random, facts: list[Fact]) -> Call:
    a, b = _number(rng), _number(rng)
    result = str(a + b) if rng.random() < 0.8 else f"{a + b}.0"
    return Call(rng.choice(wordings.SUMS).format(a, b), (a, b), result, f"The result is {result}.")


def _product(rng: random.Random, facts: list[Fact]) -> Call:
    a, b = _number(rng), _number(rng)
    result = str(a * b) if rng.random() < 0.8 else f"{a * b}.0"
    return Call(rng.choice(wordings.PRODUCTS).format(a, b), (a, b), result, f"The result is {result}.")


def _now(rng: random.Random, facts: list[Fact]) -> Call:
    clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    result = _or_other(rng.choice([clock, f"2026-0{rng.randint(1, 9)}-{rng.randint(10, 28)} {clock}"]), facts, rng)
    return Call(rng.choice(wordings.NOWS), (), result, f"The time: {result}")


def _or_other(result: str, facts: list[Fact], rng: random.Random) -> str:
    """Now and then a text that has nothing to do with the question: results are to be repeated, not remembered."""
    if rng.random() > 0.2:
        return result
    words = rng.choice(facts).answer.split()
    begin = rng.randrange(len(words))
    return " ".join(words[begin : begin + rng.randint(1, 8)])


def _family(
    names: str,
    parameters: str,
    type_: str,
    about: str,
    call: Callable[[random.Random, list[Fact]], Call] | None = None,
) -> Family:
    """Names by spaces; those of several parameters by commas, `-` for none; descriptions by lines."""
    ways = [tuple(way.split(",")) if way != "-" else () for way in parameters.split()]
    return Family(names.split(), ways, type_, [line.strip() for line in about.strip().splitlines()], call)


FAMILIES = [
    LOOKUP := _family(
        "lookup lookup look_up lookup_function get_doc get_docs search_docs documentation doc docs search read_docs "
        "python_help find_doc get_documentation lookup_doc lookup_docs retrieve",
        "name name function query topic symbol word term text key",
        "string",
        """
        Look up a built-in function in Python's documentation.
        Look a built-in function up in Python's documentation.
        Look up a function in the documentation.
        Search the documentation.
        Look something up in Python's documentation.
        Get the documentation of a Python function.
        What a Python function does.
        Returns what {0} is documented as.
        Search Python's documentation for {0}.
        Look up the documentation.
        """,
        _documented,
    ),
    _family(
        "get_weather get_weather get_weather get_current_weather weather current_weather fetch_weather getWeather "
        "weather_in lookup_weather",
        "city city city location location place town",
        "string",
        """
        Get the weather in a city.
        Get the current weather.
        Get the weather.
        Get the current weather in a given {0}.
        The weather of a city.
        Get weather for a city.
        Tells the weather in a {0}.
        Return the weather in a city.
        Get the current weather for a location.
        """,
        _weather,
    ),
    _family(
        "get_time local_time time_in get_time_in get_local_time city_time",
        "city location place timezone",
        "string",
        """
        Get the time in a city.
        Get the local time in a {0}.
        The current time in a city.
        What time it is in a {0}.
        """,
        _time,
    ),
    _family(
        "get_capital capital capital_of lookup_capital find_capital",
        "country country name land",
        "string",
        """
        Get the capital of a country.
        The capital of a country.
        Find the capital city of a {0}.
        """,
        _capital,
    ),
    _family(
        "add add add add_numbers sum plus sum_numbers calculate_sum",
        "a,b a,b x,y first,second left,right",
        "integer",
        """
        Add two numbers.
        Add two integers.
        Adds {0} and {1}.
        The sum of two numbers.
        Returns {0} plus {1}.
        """,
        _sum,
    ),
    _family(
        "multiply multiply mul times multiply_numbers product",
        "a,b a,b x,y first,second",
        "integer",
        """
        Multiply two numbers.
        Multiplies {0} by {1}.
        The product of two numbers.
        Multiply two integers.
        """,
        _product,
    ),
    _family(
        "now get_current_time current_time get_time_now clock",
        "-",
        "string",
        """
        The current time.
        Get the current time.
        Returns the time now.
        What time it is.
        """,
        _now,
    ),
    _family(
        "send_email send_mail send_message",
        "to,subject to,text",
        "string",
        """
        Send an email.
        Send a message to somebody.
        """,
    ),
    _family(
        "read_file open_file cat",
        "path file",
        "string",
        """
        Read a file.
        The content of a file.
        """,
    ),
    _family(
        "run run_command bash shell",
        "command",
        "string",
        """
        Run a command.
        Run a shell command.
        """,
    ),
]
"""A few names stand twice: those that most clients take."""
CALLABLE = [family for family in FAMILIES if family.call]


def questions() -> list[str]:
    """All wordings in which something is asked that a function answers; `{}` is what it is asked about."""
    return [
        *wordings.LOOKUPS,
        *wordings.WEATHERS,
        *wordings.TIMES,
        *wordings.CAPITALS,
        *wordings.SUMS,
        *wordings.PRODUCTS,
        *wordings.NOWS,
    ]
