"""Instructor in every mode it has for servers of OpenAI's and Anthropic's APIs.

Three of them only ask for JSON in words, and one leaves it to the model whether it calls a function: the small model of
the tests needs ``extra_body`` there to hold it to what a larger one would do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import anthropic
import instructor
from case import API_KEY, BASE_URL, MODEL, ROOT_URL, Client, until
from instructor import Mode
from openai import AsyncOpenAI, OpenAI
from pydantic import AfterValidator, BaseModel, Field

CLIENT = Client("Instructor", "instructor")
SENT: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What does len do?"}],
    "temperature": 0,
    "max_tokens": 300,
}


class Fact(BaseModel):
    """A fact about one of Python's functions."""

    name: str = Field(max_length=20)
    kind: Literal["function", "method", "statement"]
    useful: bool


class Example(BaseModel):
    """A line of code that shows it."""

    line: str = Field(max_length=30)


BLOCK = r'```json\n\{"name": "[a-z]{1,20}", "kind": "(function|method)", "useful": (true|false)\}\n```'


def _patched(mode: Mode) -> instructor.Instructor:
    return instructor.from_openai(OpenAI(base_url=BASE_URL, api_key=API_KEY), mode=mode)


def _answered(mode: Mode, **more: Any) -> str:
    api = _patched(mode)
    fact, completion = api.create_with_completion(response_model=Fact, max_retries=0, **SENT, **more)
    assert isinstance(fact, Fact)
    assert completion.usage.total_tokens > 0
    return fact.model_dump_json()


@CLIENT.case("mode: tools")
def tools() -> str:
    return _answered(Mode.TOOLS)


@CLIENT.case("mode: tools_strict")
def tools_strict() -> str:
    return _answered(Mode.TOOLS_STRICT)


@CLIENT.case("mode: functions")
def functions() -> str:
    return _answered(Mode.FUNCTIONS)


@CLIENT.case("mode: json_schema")
def json_schema() -> str:
    return _answered(Mode.JSON_SCHEMA)


@CLIENT.case("mode: json_o1")
def json_o1() -> str:
    return _answered(Mode.JSON_O1)


@CLIENT.case("mode: json")
def json_object() -> str:
    return _answered(Mode.JSON, extra_body={"guided_json": Fact.model_json_schema()})


@CLIENT.case("mode: markdown_json")
def markdown_json() -> str:
    return _answered(Mode.MD_JSON, extra_body={"structured_outputs": {"regex": BLOCK}})


@CLIENT.case("mode: parallel_tools")
def parallel_tools() -> str:
    api = _patched(Mode.PARALLEL_TOOLS)
    called = api.create(
        response_model=Iterable[Fact | Example], max_retries=0, **SENT, extra_body={"tool_choice": "required"}
    )
    found = list(called)
    assert found
    assert all(isinstance(each, Fact | Example) for each in found)
    return " ".join(each.model_dump_json() for each in found)


@CLIENT.case("mode: responses_tools")
def responses_tools() -> str:
    fact = _patched(Mode.RESPONSES_TOOLS).create(response_model=Fact, max_retries=0, **SENT)
    assert isinstance(fact, Fact)
    return fact.model_dump_json()


@CLIENT.case("partial, stream")
def partial() -> str:
    facts = []
    for mode in (Mode.TOOLS, Mode.JSON_SCHEMA):
        api = _patched(mode)
        parts = until(
            lambda parts: len(parts) > 1,
            lambda api=api: list(api.create_partial(response_model=Fact, **SENT)),
        )
        facts.append(Fact.model_validate(parts[-1].model_dump()).model_dump_json())
    return f"{len(parts)} parts: {facts[-1]}"


@CLIENT.case("iterable, stream")
def iterable() -> str:
    """The list may be empty where the schema is the client's, and is not where it is ours."""
    for mode in (Mode.TOOLS, Mode.JSON_SCHEMA):
        facts = list(_patched(mode).create_iterable(response_model=Fact, **SENT))
        assert all(isinstance(fact, Fact) for fact in facts)
    listed = {"type": "array", "items": Fact.model_json_schema(), "minItems": 2, "maxItems": 3}
    schema = {"type": "object", "properties": {"tasks": listed}, "required": ["tasks"]}
    extra = {"guided_json": schema}
    facts = list(_patched(Mode.JSON).create_iterable(response_model=Fact, **SENT, extra_body=extra))
    assert 2 <= len(facts) <= 3
    return f"{len(facts)} of them"


@CLIENT.case("async")
async def asynchronous() -> str:
    async with AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY) as api:
        fact = await instructor.from_openai(api).create(response_model=Fact, max_retries=0, **SENT)
    assert isinstance(fact, Fact)
    return fact.model_dump_json()


@CLIENT.case("asked again")
def asked_again() -> str:
    """An answer that the validator refuses goes back as a tool's result, with what was wrong."""
    refused: list[str] = []

    def once(name: str) -> str:
        if not refused:
            refused.append(name)
            raise ValueError("that is no function's name")
        return name

    class Checked(BaseModel):
        name: Annotated[str, Field(max_length=20), AfterValidator(once)]

    for mode in (Mode.TOOLS, Mode.JSON_SCHEMA):
        refused.clear()
        checked = _patched(mode).create(response_model=Checked, max_retries=2, **SENT)
        assert isinstance(checked, Checked)
        assert refused
    return checked.name


@CLIENT.case("anthropic, tools")
def anthropic_tools() -> str:
    api = instructor.from_anthropic(anthropic.Anthropic(base_url=ROOT_URL, api_key=API_KEY))
    sent = {key: value for key, value in SENT.items() if key != "temperature"}
    fact = api.create(response_model=Fact, max_retries=0, **sent, extra_body={"temperature": 0})
    assert isinstance(fact, Fact)
    return fact.model_dump_json()


@CLIENT.case("anthropic, json")
def anthropic_json() -> str:
    """Also what json_schema falls back to there: Instructor misses an argument in this release of the client."""
    api = anthropic.Anthropic(base_url=ROOT_URL, api_key=API_KEY)
    sent = {key: value for key, value in SENT.items() if key != "temperature"}
    extra = {"temperature": 0, "guided_json": Fact.model_json_schema()}
    fact = instructor.from_anthropic(api, mode=Mode.JSON).create(
        response_model=Fact, max_retries=0, **sent, extra_body=extra
    )
    assert isinstance(fact, Fact)
    return fact.model_dump_json()


CLIENT.main()
