"""Guidance: its models of OpenAI, vLLM and SGLang take a URL.

OpenAI's takes JSON alone. The other two send what was written as a grammar of llguidance's: vLLM's under its old and
its new name at once, with every schema and choice in it; SGLang's as ``ebnf``, beside ``regex`` and
``response_format``.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import guidance
from case import API_KEY, BASE_URL, MODEL, Client, until
from guidance import assistant, gen, select, user
from guidance.models import OpenAI
from guidance.models.experimental import SglangModel, VLLMModel
from pydantic import BaseModel, ConfigDict

CLIENT = Client("Guidance", "guidance")
ALMOST_NONE = 0.001
"""The library sends no temperature of 0, and its model of vLLM none at all: that one, and SGLang's, have ``top_k``."""


class Verdict(BaseModel):
    """What is to be answered."""

    model_config = ConfigDict(extra="forbid")  # a grammar of llguidance leaves objects open otherwise

    builtin: bool
    kind: Literal["function", "class"]


def asked(kind: Any, text: str = "What does len do?") -> Any:
    """A conversation that has come to the model's turn."""
    greedy: dict[str, Any] = {} if kind is OpenAI else {"sampling_params": {"top_k": 1}}
    lm = kind(MODEL, base_url=BASE_URL, api_key=API_KEY, echo=False, **greedy)
    with user():
        lm += text
    return lm


@CLIENT.case("basic")
def basic() -> str:
    found = []
    for kind in (OpenAI, VLLMModel, SglangModel):
        lm = asked(kind)
        with assistant():
            lm += gen("answer", max_tokens=60, temperature=ALMOST_NONE)
        found.append(lm["answer"])
    assert "number of items" in found[0], found
    assert found[0] == found[1] == found[2], found
    return found[0]


@CLIENT.case("stream")
def stream() -> str:
    @guidance.guidance
    def answered(lm: Any) -> Any:  # in a function, as a stream has a thread of its own and roles are a thread's
        with assistant():
            lm += gen("answer", max_tokens=60, temperature=ALMOST_NONE)
        return lm

    def ask() -> list[str]:
        return [str(part) for part in asked(OpenAI).stream() + answered()]

    texts = until(lambda texts: len([text for text in set(texts) if "The" in text]) > 1, ask)
    assert "number of items" in texts[-1], texts
    return texts[-1]


@CLIENT.case("structured")
def structured() -> str:
    found = []
    for kind in (OpenAI, VLLMModel, SglangModel):
        lm = asked(kind)
        with assistant():
            lm += guidance.json("answer", schema=Verdict, temperature=ALMOST_NONE, max_tokens=60)
        found.append(Verdict.model_validate_json(lm["answer"]))
    return " ".join(repr(each) for each in found)


@CLIENT.case("choice")
def choice() -> str:
    lm = asked(VLLMModel, "Is len a function or a class?")
    with assistant():
        lm += select(["function", "class"], name="answer")
    assert lm["answer"] in {"function", "class"}, lm
    return lm["answer"]


@CLIENT.case("regex")
def regex() -> str:
    found = []
    for kind in (VLLMModel, SglangModel):
        lm = asked(kind, "When was Python 3 released?")
        with assistant():
            lm += gen("answer", regex=r"20[0-9]{2}-(0[1-9]|1[0-2])", temperature=ALMOST_NONE)
        assert re.fullmatch(r"20[0-9]{2}-(0[1-9]|1[0-2])", lm["answer"]), lm["answer"]
        found.append(lm["answer"])
    return found[0]


@CLIENT.case("grammar")
def grammar() -> str:
    for kind in (VLLMModel, SglangModel):
        lm = asked(kind, "How long is a list?")
        with assistant():
            lm += (
                "A list of "
                + gen("count", regex="[1-9]")
                + " has the length "
                + gen("length", regex="[0-9]{1,2}")
                + "."
            )
        found = re.fullmatch(r"A list of ([1-9]) has the length ([0-9]{1,2})\.", str(lm).split("\n")[-1])
        assert found, lm
        assert (lm["count"], lm["length"]) == found.groups(), lm
    return found[0]


@CLIENT.case("tools")
def tools() -> str:
    def look_up(name: Literal["len", "abs"]) -> str:
        """Look a builtin of Python up."""
        return f"{name} was looked up"

    lm = asked(OpenAI)
    with assistant():
        lm += gen(tools=[look_up], tool_choice="required")
    call = re.search(r'<tool=look_up>\{"name": "(len|abs)"\}</tool>', str(lm))
    assert call, lm
    assert f"{call[1]} was looked up" in str(lm), lm
    return call[0]


CLIENT.main()
