"""Reasoning through the HTTP interface, on real servers whose model follows a script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_support.fake_engine import write_script
from engine_support.server_process import ServerProcess, running_server
from engine_support.tool_models import QWEN3, THINKING, write_tool_model

MESSAGES = [{"role": "user", "content": "Sum?"}]
TOOLS = [{"type": "function", "function": {"name": "add"}}]
THOUGHT = "Hm,\n2 + 2 <is> 4."
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'


class Served:
    """A server, and whether its prompts begin the reasoning."""

    def __init__(self, server: ServerProcess, model: Path) -> None:
        self.server = server
        self.model = model
        self.opens = model.name == "thinking"

    def script(self, thought: str, content: str) -> None:
        begin = "" if self.opens else "<think>\n"
        write_script(self.model, ("Sum?", f"{begin}{thought}\n</think>\n\n{content}"))

    def complete(self, **fields: Any) -> dict[str, Any]:
        response = self.server.post("/v1/chat/completions", **{"messages": MESSAGES, "max_tokens": 300, **fields})
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        return body

    def stream(self, **fields: Any) -> list[dict[str, Any]]:
        body = {
            "messages": MESSAGES,
            "max_tokens": 300,
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        response = httpx.post(f"{self.server.url}/v1/chat/completions", json=body, timeout=60)
        events = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
        return [json.loads(event) for event in events]


@pytest.fixture(scope="module", params=["qwen3", "thinking"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    template = {"qwen3": QWEN3, "thinking": THINKING}[request.param]
    model = write_tool_model(tmp_path_factory.mktemp("model") / request.param, template)
    with running_server(tmp_path_factory.mktemp("server"), model, engine="scripted") as server:
        yield Served(server, model)


def _joined(events: list[dict[str, Any]], name: str) -> str:
    return "".join(event["choices"][0]["delta"].get(name) or "" for event in events if event["choices"])


def test_reasoning_is_separated_from_content(served: Served) -> None:
    served.script(THOUGHT, "Four.")
    body = served.complete()
    message = body["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"] == THOUGHT
    assert message["content"] == "Four."
    usage = body["usage"]
    tokens = usage["completion_tokens_details"]["reasoning_tokens"]
    assert len(THOUGHT) // 2 < tokens < usage["completion_tokens"]
    events = served.stream()
    assert _joined(events, "reasoning_content") == _joined(events, "reasoning") == THOUGHT
    assert _joined(events, "content") == "Four."
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    assert deltas[0] == {"role": "assistant", "content": None}
    kinds = [next(iter(delta)) for delta in deltas[1:] if delta]
    assert kinds == sorted(kinds, reverse=True), "all reasoning before all content"
    assert events[-1]["usage"] == {**usage, "prompt_tokens_details": events[-1]["usage"]["prompt_tokens_details"]}


def test_reasoning_can_be_left_out(served: Served) -> None:
    served.script(THOUGHT, "Four.")
    body = served.complete(include_reasoning=False)
    assert "reasoning_content" not in body["choices"][0]["message"]
    assert body["choices"][0]["message"]["content"] == "Four."
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] > 10
    events = served.stream(include_reasoning=False)
    assert _joined(events, "reasoning_content") == ""
    assert _joined(events, "content") == "Four."


def test_an_output_cut_short_in_its_reasoning_has_no_content(served: Served) -> None:
    served.script(THOUGHT * 10, "Four.")
    body = served.complete(max_tokens=30)
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] is None
    assert (THOUGHT * 10).startswith(choice["message"]["reasoning_content"])
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 30


def test_calls_come_after_the_reasoning(served: Served) -> None:
    served.script(f"I could {CALL}.", CALL)
    (choice,) = served.complete(tools=TOOLS)["choices"]
    assert choice["message"]["reasoning_content"] == f"I could {CALL}."
    assert choice["message"]["content"] is None
    assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == ['{"a": 2}']
    assert choice["finish_reason"] == "tool_calls"


def test_a_format_holds_for_what_comes_after_the_reasoning(served: Served) -> None:
    served.script(THOUGHT, "Four.")
    (choice,) = served.complete(guided_choice=["4", "5"])["choices"]
    assert choice["message"]["reasoning_content"] == THOUGHT
    assert choice["message"]["content"] in ("4", "5")
    schema = {"type": "object", "properties": {"sum": {"enum": [4, 5]}}, "required": ["sum"],
              "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": schema}}
    (choice,) = served.complete(response_format=form)["choices"]
    assert choice["message"]["reasoning_content"] == THOUGHT
    assert json.loads(choice["message"]["content"])["sum"] in (4, 5)


def test_a_required_call_leaves_room_for_reasoning(served: Served) -> None:
    served.script(THOUGHT, "Four.")
    (choice,) = served.complete(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)["choices"]
    assert choice["message"]["reasoning_content"] == THOUGHT
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["add"]


def test_switched_off_by_the_template(served: Served) -> None:
    write_script(served.model, ("Sum?", "Four."))
    body = served.complete(chat_template_kwargs={"enable_thinking": False})
    message, tokens = body["choices"][0]["message"], body["usage"]["completion_tokens_details"]["reasoning_tokens"]
    if served.opens:  # this template does not know the switch: all that came is the beginning of a thought
        assert (message["reasoning_content"], message["content"]) == ("Four.", None)
        assert tokens > 0
    else:
        assert message["content"] == "Four."
        assert "reasoning_content" not in message
        assert tokens == 0


def test_reasoning_of_an_earlier_turn_reaches_the_template(served: Served) -> None:
    write_script(served.model, ("PLAN</think>", "Seen."), ("Sum?", "Not seen."))
    for name in ("reasoning_content", "reasoning"):
        messages = [*MESSAGES, {"role": "assistant", "content": "", name: "PLAN"}]
        prompt = served.server.post("/tokenize", messages=messages, add_generation_prompt=False).json()["tokens"]
        text = served.server.post("/detokenize", tokens=prompt).json()["prompt"]
        assert "<think>\nPLAN\n</think>" in text
