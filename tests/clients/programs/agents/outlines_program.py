"""Outlines: its model of OpenAI, and those of the servers of vLLM and SGLang, take an OpenAI client of any URL."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import outlines
from case import API_KEY, BASE_URL, MODEL, Client, until
from openai import AsyncOpenAI, OpenAI
from outlines.inputs import Chat
from outlines.types import CFG, Regex
from pydantic import BaseModel, Field

CLIENT = Client("Outlines", "outlines")
SETTINGS: dict[str, Any] = {"temperature": 0, "max_tokens": 100}
QUESTION = "What does len do?"
LARK = """
start: NUMBER "+" NUMBER
NUMBER: /[0-9]{1,3}/
"""
EBNF = 'root ::= number "+" number\nnumber ::= [0-9]{1,3}'
"""The same, as SGLang takes it: the library warns that it is no grammar of Lark's, and sends it."""


class Verdict(BaseModel):
    """What is to be answered."""

    builtin: bool
    kind: Literal["function", "class"]
    names: list[Literal["len", "abs"]] = Field(max_length=2)


def openai() -> Any:
    """The server as OpenAI."""
    return outlines.from_openai(OpenAI(base_url=BASE_URL, api_key=API_KEY), MODEL)


def vllm() -> Any:
    """The server as vLLM."""
    return outlines.from_vllm(OpenAI(base_url=BASE_URL, api_key=API_KEY), MODEL)


def sglang() -> Any:
    """The server as SGLang."""
    return outlines.from_sglang(OpenAI(base_url=BASE_URL, api_key=API_KEY), MODEL)


@CLIENT.case("basic")
def basic() -> str:
    found = openai()(Chat([{"role": "user", "content": QUESTION}]), **SETTINGS)
    assert "number of items" in found
    assert found == vllm()(QUESTION, **SETTINGS) == sglang()(QUESTION, **SETTINGS)
    return found


@CLIENT.case("stream")
def stream() -> str:
    pieces = until(lambda pieces: len(pieces) > 1, lambda: list(openai().stream(QUESTION, **SETTINGS)))
    assert "".join(pieces) == openai()(QUESTION, **SETTINGS), pieces
    return "".join(pieces)


@CLIENT.case("structured")
def structured() -> str:
    found = [model(QUESTION, Verdict, **SETTINGS) for model in (openai(), vllm(), sglang())]
    return " ".join(repr(Verdict.model_validate_json(each)) for each in found)


@CLIENT.case("structured, stream")
def structured_stream() -> str:
    joined = "".join(vllm().stream(QUESTION, Verdict, **SETTINGS))
    assert joined == vllm()(QUESTION, Verdict, **SETTINGS)
    return repr(Verdict.model_validate_json(joined))


@CLIENT.case("JSON mode")
def json_mode() -> str:
    found = openai()(QUESTION, dict, temperature=0, max_tokens=20)
    assert found.startswith("{")
    return found


@CLIENT.case("choice")
def choice() -> str:
    for model in (vllm(), sglang()):
        found = model("Is len a function or a class?", Literal["function", "class"], **SETTINGS)
        assert found in {"function", "class"}, found
    return found


@CLIENT.case("regex")
def regex() -> str:
    for model in (vllm(), sglang()):
        found = model("When was Python 3 released?", Regex(r"20[0-9]{2}-(0[1-9]|1[0-2])"), **SETTINGS)
        assert re.fullmatch(r"20[0-9]{2}-(0[1-9]|1[0-2])", found), found
    number = vllm()("How many arguments does len take?", int, **SETTINGS)
    assert int(number) is not None
    return f"{found}, {number}"


@CLIENT.case("grammar")
def grammar() -> str:
    lark = vllm()("Add two numbers.", CFG(LARK), **SETTINGS)
    ebnf = sglang()("Add two numbers.", CFG(EBNF), **SETTINGS)
    assert all(re.fullmatch(r"[0-9]{1,3}\+[0-9]{1,3}", found) for found in (lark, ebnf)), (lark, ebnf)
    return f"{lark} {ebnf}"


@CLIENT.case("async")
async def asynchronous() -> str:
    async with AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY) as connection:
        model = outlines.from_vllm(connection, MODEL)
        found = await model(QUESTION, Verdict, **SETTINGS)
        pieces = [piece async for piece in model.stream(QUESTION, Verdict, **SETTINGS)]
    assert "".join(pieces) == found
    return repr(json.loads(found))


CLIENT.main()
