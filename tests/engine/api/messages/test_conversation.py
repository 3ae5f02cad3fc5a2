"""Blocks of messages as the messages of a chat: what coding agents send, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from blade_llm.api.common.errors import ApiError
from blade_llm.api.messages.as_chat import as_chat
from blade_llm.api.messages.conversation import messages_of
from blade_llm.api.messages.requests import MessagesRequest, parse_request

CACHED = {"cache_control": {"type": "ephemeral"}}


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


def use(number: int, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "read", "input": arguments}


def result(number: int, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": content, **more}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def said(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def chat_of(**fields: Any) -> Any:
    raw = {"max_tokens": 5, "messages": [user("x")], **fields}
    return as_chat(parse_request(raw, MessagesRequest), raw)[0]


def test_a_turn_of_a_coding_agent() -> None:
    system = [text("x-anthropic-billing-header: cch=1a2b;"), text("You code.", **CACHED), text(""), text("Be brief.")]
    messages = [
        user([text("<reminder>"), text("", **CACHED), text("Fix it.")]),
        said(
            [
                {"type": "thinking", "thinking": "Two files.", "signature": "s"},
                {"type": "redacted_thinking", "data": "…"},
                text("I read both."),
                use(1, path="a"),
                {**use(2, path="b"), **CACHED},
            ]
        ),
        user([result(1, "one", **CACHED), text("now"), result(2, [text("two"), text("lines")], is_error=True)]),
    ]
    calls = [
        {"id": "toolu_1", "type": "function", "function": {"name": "read", "arguments": {"path": "a"}}},
        {"id": "toolu_2", "type": "function", "function": {"name": "read", "arguments": {"path": "b"}}},
    ]
    assert messages_of(messages, system).messages == [
        {"role": "system", "content": "You code.\nBe brief."},
        {"role": "user", "content": "<reminder>\nFix it."},
        {"role": "assistant", "content": "I read both.", "reasoning_content": "Two files.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "one"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: two\nlines"},
        {"role": "user", "content": "now"},
    ]


@pytest.mark.parametrize(
    ("messages", "chat"),
    [
        ([user("a"), user([text("b")])], [{"role": "user", "content": "a\nb"}]),
        (
            [user("a"), said("b"), said([text("c"), use(1)]), user([result(1, None)])],
            [
                {"role": "user", "content": "a"},
                {
                    "role": "assistant",
                    "content": "b\nc",
                    "tool_calls": [
                        {"id": "toolu_1", "type": "function", "function": {"name": "read", "arguments": {}}}
                    ],
                },
                {"role": "tool", "tool_call_id": "toolu_1", "content": ""},
            ],
        ),
        ([user("a"), said("")], [{"role": "user", "content": "a"}]),
        ([user("")], [{"role": "user", "content": ""}]),
        (
            [user("a"), {"role": "system", "content": [text("b")]}, user("c")],
            [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}, {"role": "user", "content": "c"}],
        ),
    ],
    ids=["users", "assistants", "empty-answer", "empty", "system"],
)
def test_turns(messages: list[Any], chat: list[Any]) -> None:
    assert messages_of(messages, None).messages == chat


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([said([{"type": "image", "source": {}}])], r"messages\[0\].content\[0\]: blocks of type 'image'"),
        ([user([{"type": "document"}])], "'document' are not supported"),
        ([user([result(1, [{"type": "document"}])])], r"messages\[0\].content\[0\].content\[0\]: .*'document'"),
        ([said([{"type": "server_tool_use"}])], "'server_tool_use' are not supported"),
        ([user("a"), said([use(1)])], "end with a tool_use"),
        ([user([{"type": "tool_result"}])], r"content\[0\].tool_use_id must be a string"),
        ([said([{"type": "tool_use", "id": "1", "name": "f", "input": "x"}])], r"content\[0\].input must be an object"),
        ([{"role": "tool", "content": "x"}], r"messages\[0\].role must be user or assistant"),
        ([user(3)], r"messages\[0\].content must be a string or a list"),
        ([user(["x"])], r"messages\[0\].content\[0\] must be a block"),
        (["x"], r"messages\[0\] must be a message"),
        ([said("")], "messages hold no content"),
    ],
)
def test_refused(messages: list[Any], complaint: str) -> None:
    with pytest.raises(ApiError, match=complaint) as refused:
        messages_of(messages, None)
    assert (refused.value.status, refused.value.detail.param) == (400, "messages")


def test_a_system_prompt_is_text() -> None:
    with pytest.raises(ApiError, match=r"system\[0\]: blocks of type 'image'") as refused:
        messages_of([user("x")], [{"type": "image"}])
    assert refused.value.detail.param == "system"


def test_the_last_message_of_the_assistant_is_continued() -> None:
    assert chat_of(messages=[user("x"), said("The answer is (")]).continue_final_message
    assert not chat_of().continue_final_message


SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "$schema": "https://json-schema.org/draft-07"}
TOOL = {
    "name": "read",
    "description": "Reads",
    "input_schema": SCHEMA,
    "type": "custom",
    "input_examples": [],
    **CACHED,
}


@pytest.mark.parametrize(
    ("choice", "mode", "parallel"),
    [
        (None, None, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any"}, "required", True),
        ({"type": "none"}, "none", True),
    ],
)
def test_tools(choice: Any, mode: str | None, parallel: bool) -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    chat = chat_of(tools=[search, TOOL], tool_choice=choice)
    (tool,) = chat.tools
    assert (tool.function.name, tool.function.description, tool.function.parameters) == ("read", "Reads", SCHEMA)
    assert (chat.tool_choice, chat.parallel_tool_calls) == (mode, parallel)


def test_a_named_tool() -> None:
    assert chat_of(tools=[TOOL], tool_choice={"type": "tool", "name": "read"}).tool_choice.function.name == "read"


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, r"tools\[0\]: 'bash_20250124' is not supported"),
        ({"tools": [{"name": "f"}]}, r"tools\[0\].input_schema must be a JSON Schema"),
        ({"tools": [{"input_schema": {}}]}, r"tools\[0\].name must be a string"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "defer_loading is not supported"),
        ({"tool_choice": {"type": "any"}}, "there are no tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "needs a name"),
        ({"mcp_servers": [{"type": "url"}]}, "'mcp_servers' is not taken"),
        ({"container": "c"}, "'container' is not taken"),
        ({"stop": ["a"], "stop_sequences": ["b"]}, "send one of them"),
        ({"output_format": {"type": "json_schema", "schema": {}}, "response_format": {"type": "json_object"}}, "both"),
        ({"output_format": {"type": "xml", "schema": {}}}, "output_format"),
        ({"thinking": {"type": "sometimes"}}, "thinking"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "'max_tokens' is required"),
    ],
)
def test_refused_fields(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ApiError, match=complaint) as refused:
        chat_of(**fields)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("fields", "effort", "arguments"),
    [
        ({}, "none", {}),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, "none", {}),
        ({"thinking": {"type": "adaptive"}}, None, {}),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, "high", {}),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}, "chat_template_kwargs": {"thinking": "much"}},
            None,
            {"enable_thinking": True, "thinking": "much"},
        ),
    ],
)
def test_thinking(fields: dict[str, Any], effort: str | None, arguments: dict[str, Any]) -> None:
    chat = chat_of(**fields)
    assert (chat.reasoning_effort, chat.chat_template_kwargs) == (effort, arguments)


@pytest.mark.parametrize("name", ["output_format", "output_config"])
def test_structured_output(name: str) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    chat = chat_of(**{name: form if name == "output_format" else {"format": form}})
    assert chat.response_format.json_schema.schema == SCHEMA


def test_fields_of_agents_and_of_samplers() -> None:
    chat = chat_of(
        metadata={"user_id": "u"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        service_tier="auto",
        cache_control={"type": "ephemeral"},
        mcp_servers=[],
        container=None,
        stop_sequences=["\n\nHuman:"],
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        seed=3,
    )
    assert (chat.stop, chat.temperature, chat.top_p, chat.top_k, chat.seed) == (["\n\nHuman:"], 0.5, 0.9, 40, 3)


def test_many_small_blocks_are_joined_once() -> None:
    """A hundred thousand of them beside a long one: joined one by one they would be copied for minutes."""
    blocks = [text("x" * 1_000_000), *(text("y") for _ in range(100_000))]
    (message,) = messages_of([user("z"), *([user(blocks)] + [user("w")] * 1_000)], None).messages
    assert message["content"] == "\n".join(["z", "x" * 1_000_000, *["y"] * 100_000, *["w"] * 1_000])
