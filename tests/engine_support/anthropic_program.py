"""Anthropic's own client against a server of the scripted model of ``anthropic_script``; ends with ``all well``.

A program, as the client is installed elsewhere than the tests: ``URL`` and ``KEY`` are in the environment.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import anthropic

URL = os.environ["URL"]
KEY = os.environ.get("KEY", "none")
client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
WEATHER: Any = {
    "name": "weather",
    "description": "Of today",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "cache_control": {"type": "ephemeral"},
}
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}
COLD: Any = [{"role": "user", "content": "cold"}]


def create() -> None:
    message = client.messages.create(model="tools", max_tokens=300, messages=COLD, metadata={"user_id": "u"})
    assert message.content[0].text == "It is cold."
    assert (message.stop_reason, message.type) == ("end_turn", "message")
    assert message._request_id
    beta = client.beta.messages.create(model="tools", max_tokens=300, messages=COLD, betas=["interleaved-thinking"])
    assert beta.content[0].text == "It is cold."
    models = client.models.list().data
    assert [model.id for model in models] == ["tools"]


def stream() -> None:
    with client.messages.stream(model="tools", max_tokens=300, messages=COLD, system=[]) as events:
        assert "".join(events.text_stream) == "It is cold."
        message = events.get_final_message()
    assert message.usage.output_tokens > 3
    assert message.content[0].text == "It is cold."
    kinds = [event.type for event in client.messages.create(model="tools", max_tokens=9, messages=COLD, stream=True)]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


async def asynchronous() -> None:
    async with anthropic.AsyncAnthropic(base_url=URL, auth_token=KEY, api_key=None, max_retries=0) as other:
        async with other.messages.stream(model="tools", max_tokens=300, messages=COLD) as events:
            assert "".join([text async for text in events.text_stream]) == "It is cold."


def coding_agent() -> None:
    """Every turn streams, thinks, and calls two tools at once; the last request is the longest."""
    system: Any = [
        {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
    ]
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "the weather in Oslo"}]}
    ]
    for _ in range(4):
        request: Any = {"model": "tools", "messages": messages, "system": system, "tools": [WEATHER]}
        with client.beta.messages.stream(
            **request,
            max_tokens=32_000,
            thinking=THINKING,
            betas=["context-management-2025-06-27"],
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            metadata={"user_id": "u"},
        ) as events:
            message = events.get_final_message()
        count = client.messages.count_tokens(**request, thinking=THINKING).input_tokens
        usage = message.usage
        assert count == usage.input_tokens + (usage.cache_read_input_tokens or 0)
        messages.append({"role": "assistant", "content": message.content})
        calls = [block for block in message.content if block.type == "tool_use"]
        if message.stop_reason != "tool_use":
            break
        assert [call.input for call in calls] == [{"city": "Oslo"}, {"city": "Rome"}]
        results: list[Any] = [
            {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "3 degrees"}]}
            for call in calls
        ]
        results[-1] |= {"is_error": True, "cache_control": {"type": "ephemeral"}}
        messages.append({"role": "user", "content": [*results, {"type": "text", "text": "go on by degrees"}]})
    assert len(messages) == 4
    assert [block.type for block in messages[1]["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[-1].text == "Cold everywhere."


def tool_runner() -> None:
    @anthropic.beta_tool
    def weather(city: str) -> str:
        """Of today

        Args:
            city: Where.
        """
        return f"3 degrees in {city}"

    runner = client.beta.messages.tool_runner(
        model="tools", max_tokens=300, tools=[weather], messages=[{"role": "user", "content": "Oslo"}]
    )
    assert runner.until_done().content[-1].text == "Cold everywhere."


def errors() -> None:
    def refused(kind: type[anthropic.APIStatusError], error_type: str, **fields: Any) -> str:
        try:
            client.messages.create(**{"model": "tools", "max_tokens": 9, "messages": COLD, **fields})
        except kind as error:
            found = error
        assert found.body["error"]["type"] == error_type, found.body
        assert found.request_id or found.status_code == 413, "the router refuses that one before it has an id"
        return str(found)

    assert "nobody" in refused(anthropic.NotFoundError, "not_found_error", model="nobody")
    refused(anthropic.BadRequestError, "invalid_request_error", max_tokens=0)
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    pictured: Any = [{"role": "user", "content": [image]}]
    said = refused(anthropic.BadRequestError, "invalid_request_error", messages=pictured)
    assert "messages[0].content[0]: image is not supported by this model" in said, said
    too_long: Any = [{"role": "user", "content": "x" * 3000}]
    assert "prompt is too long" in refused(anthropic.BadRequestError, "invalid_request_error", messages=too_long)
    refused(anthropic.BadRequestError, "invalid_request_error", messages=too_long, stream=True)
    refused(anthropic.APIStatusError, "request_too_large", extra_body={"x": "x" * (17 << 20)})


if __name__ == "__main__":
    create()
    stream()
    asyncio.run(asynchronous())
    coding_agent()
    tool_runner()
    errors()
    print("all well")
