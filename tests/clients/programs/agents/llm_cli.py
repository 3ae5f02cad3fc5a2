"""``llm``, the command line: a model of another server is an entry of ``extra-openai-models.yaml`` in its folder.

It has no way to demand a call: its tools are declared, and their use is the model's to say.
"""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

from case import BASE_URL, MODEL, TURN, Client, until

FOLDER = tempfile.TemporaryDirectory(prefix="llm-")
os.environ["LLM_USER_PATH"] = FOLDER.name  # before it is imported: the folder of its settings, logs and models

import llm  # noqa: E402
from pydantic import BaseModel  # noqa: E402

CLIENT = Client("llm", "llm")
QUESTION = "What does len do?"
ENTRY = f"""
  model_name: {MODEL}
  api_base: "{BASE_URL}"
  supports_tools: true
  supports_schema: true
"""
MODELS = f"""
- model_id: chat{ENTRY}
- model_id: responses{ENTRY}  responses: true
- model_id: completion{ENTRY}  completion: true
"""
Path(FOLDER.name, "extra-openai-models.yaml").write_text(MODELS)
OPTIONS: dict[str, Any] = {"temperature": 0, "max_tokens": 60}


class Verdict(BaseModel):
    """What is to be answered."""

    builtin: bool
    kind: Literal["function", "class"]


def lookup(name: str) -> str:
    """Look up a built-in function in Python's documentation."""
    return str(getattr(builtins, name).__doc__).partition("\n")[0]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What the command prints, on its standard output and error."""
    line = [sys.executable, "-m", "llm", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@CLIENT.case("basic")
def basic() -> str:
    done = command("-m", "chat", "--no-stream", "--usage", "-o", "temperature", "0", "-o", "max_tokens", "60", QUESTION)
    assert "number of items" in done.stdout, done.stdout
    assert "input" in done.stderr, done.stderr  # "Token usage: … input, … output"
    assert "output" in done.stderr, done.stderr
    followed = command(
        "-c", "-o", "temperature", "0", "What does abs do?"
    )  # of the same conversation, which its log keeps
    assert "absolute value" in followed.stdout, followed.stdout
    return followed.stdout.strip()


@CLIENT.case("stream")
def stream() -> str:
    model = llm.get_model("chat")
    whole = model.prompt(QUESTION, stream=False, **OPTIONS)
    responses: list[Any] = []

    def ask() -> list[str]:
        responses.append(model.prompt(QUESTION, **OPTIONS))
        return list(responses[-1])

    pieces = until(lambda pieces: len(pieces) > 1, ask)
    streamed = responses[-1]
    assert "".join(pieces) == whole.text(), pieces
    assert streamed.usage().output == whole.usage().output > 0
    return "".join(pieces)


@CLIENT.case("structured")
def structured() -> str:
    typed = command("-m", "chat", "--schema", "builtin bool, stars bool", QUESTION).stdout
    assert {type(value) for value in json.loads(typed).values()} == {bool}, typed
    return repr(Verdict.model_validate_json(llm.get_model("chat").prompt(QUESTION, schema=Verdict, **OPTIONS).text()))


def chained(model: llm.Model) -> str:
    """An answer of a chain of prompts, in which each call of a tool is executed and answered."""
    chain = model.chain("What does len do? Look it up.", tools=[lookup], options=OPTIONS)
    text = chain.text()
    calls = [call for response in chain._responses for call in response.tool_calls()]
    assert "number of items" in text, chain
    assert [(call.name, call.arguments) for call in calls] == [("lookup", {"name": "len"})], calls
    return f"{[call.arguments for call in calls]} → {text}"


@CLIENT.case("tools")
def tools() -> str:
    return chained(llm.get_model("chat"))


@CLIENT.case("responses")
def responses() -> str:
    model = llm.get_model("responses")
    whole = model.prompt(QUESTION, stream=False, **OPTIONS)
    streamed = model.prompt(QUESTION, **OPTIONS)
    assert "number of items" in whole.text(), (whole.text(), streamed.text())
    assert whole.text() == streamed.text(), (whole.text(), streamed.text())
    assert streamed.usage().output == whole.usage().output > 0
    return repr(Verdict.model_validate_json(model.prompt(QUESTION, schema=Verdict, **OPTIONS).text()))


@CLIENT.case("responses, tools")
def responses_tools() -> str:
    return chained(llm.get_model("responses"))


@CLIENT.case("completion")
def completion() -> str:
    model = llm.get_model("completion")
    found = [model.prompt(TURN, stream=streamed, **OPTIONS).text() for streamed in (False, True)]
    assert "number of items" in found[0], found
    assert found[0] == found[1], found
    return found[0]


@CLIENT.case("async")
async def asynchronous() -> str:
    model = llm.get_async_model("chat")
    pieces = [piece async for piece in model.prompt(QUESTION, **OPTIONS)]
    whole = await model.prompt(QUESTION, stream=False, **OPTIONS)
    assert "".join(pieces) == await whole.text()
    assert "number of items" in "".join(pieces)
    return "".join(pieces)


CLIENT.main()
