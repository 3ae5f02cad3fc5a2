"""Anthropic's own client sends pictures to a server of a real model; ends with ``all well``.

A program, as the client is installed elsewhere than the tests: ``URL`` is in the environment, and in ``CASE`` the file
with a picture in base64, and what the same chat of OpenAI's API was answered.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anthropic

CASE: dict[str, Any] = json.loads(Path(os.environ["CASE"]).read_text(encoding="utf-8"))
GREEDY = {"temperature": 0, "ignore_eos": True}
"""The client has no arguments for them."""
client = anthropic.Anthropic(base_url=os.environ["URL"], api_key="none", max_retries=0)


def request(*pictures: str) -> dict[str, Any]:
    """A question about pictures."""
    sources = [{"type": "base64", "media_type": "image/png", "data": picture} for picture in pictures]
    blocks = [*({"type": "image", "source": source} for source in sources), {"type": "text", "text": CASE["question"]}]
    return {"model": CASE["model"], "messages": [{"role": "user", "content": blocks}]}


def prompt_tokens(usage: Any) -> int:
    """All of them: Anthropic's API counts those found in the prefix cache apart."""
    return int(usage.input_tokens + (usage.cache_read_input_tokens or 0))


def create() -> None:
    asked = request(CASE["picture"])
    message = client.messages.create(**asked, max_tokens=CASE["max_tokens"], extra_body=GREEDY)
    assert [block.text for block in message.content] == [CASE["said"]], message
    assert prompt_tokens(message.usage) == CASE["prompt_tokens"], message.usage
    assert client.messages.count_tokens(**asked).input_tokens == CASE["prompt_tokens"]
    alone = client.messages.count_tokens(**request()).input_tokens
    assert alone < CASE["prompt_tokens"] - 4, "the picture's tokens count"


def stream() -> None:
    asked = request(CASE["picture"])
    with client.messages.stream(**asked, max_tokens=CASE["max_tokens"], extra_body=GREEDY) as events:
        assert "".join(events.text_stream) == CASE["said"]
        usage = events.get_final_message().usage
    assert prompt_tokens(usage) == CASE["prompt_tokens"], usage


def broken() -> None:
    asked = request(CASE["picture"], CASE["broken"])
    calls = (
        lambda: client.messages.create(**asked, max_tokens=2),
        lambda: client.messages.create(**asked, max_tokens=2, stream=True),
        lambda: client.messages.count_tokens(**asked),
    )
    for call in calls:
        try:
            call()
        except anthropic.BadRequestError as refused:
            error = refused.body["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_image"), error
            assert error["message"].startswith("messages[0].content[1]: "), error
            continue
        raise AssertionError("a broken picture was taken")


if __name__ == "__main__":
    create()
    stream()
    broken()
    print("all well")
