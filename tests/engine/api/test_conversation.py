"""Conversations become prompts without holding up the event loop, however large they are."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from blade_llm.api.chat_request import ChatRequest
from blade_llm.api.common.errors import ApiError
from blade_llm.api.common.response_notes import noting
from blade_llm.api.conversation import render
from blade_llm.api.images.serving import NoImages
from blade_llm.text.chat_template import ChatTemplate
from blade_llm.text.errors import TemplatesBusyError


class _Template:
    """Renders the name of the process."""

    variables: frozenset[str] = frozenset()
    source = ""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def render(self, messages: Sequence[dict[str, Any]], **options: Any) -> str:
        self.threads.append(threading.current_thread())
        return "".join(message["content"] for message in messages)


class _Busy:
    async def render(self, *arguments: Any, **options: Any) -> str:
        raise TemplatesBusyError("too many wait")


def _context(template: _Template | ChatTemplate | None = None, **defaults: Any) -> Any:
    model = SimpleNamespace(
        chat_template=template or _Template(),
        tokenizer=SimpleNamespace(special_tokens={}),
        default_chat_template_kwargs=defaults,
    )
    return SimpleNamespace(model=model, templates=_Busy(), max_model_len=2048, images=NoImages())


def _chat(*contents: Any, **fields: Any) -> ChatRequest:
    return ChatRequest(messages=[{"role": "user", "content": content} for content in contents], **fields)


async def test_large_conversations_are_rendered_in_a_thread() -> None:
    parts = [{"type": "text", "text": "x" * 60_000}] * 2
    for contents in (["x" * 100_001], [parts], [""] * 1_001):
        template = _Template()
        await render(_context(template), _chat(*contents))
        assert threading.main_thread() not in template.threads
    template = _Template()
    assert (await render(_context(template), _chat("hello", " you"))).text == "hello you"
    assert template.threads == [threading.main_thread()]


async def test_more_messages_than_the_context_has_tokens() -> None:
    template = _Template()
    with pytest.raises(ApiError) as caught:
        await render(_context(template), _chat(*[""] * 2049))
    assert (caught.value.detail.code, caught.value.detail.param) == ("context_length_exceeded", "messages")
    assert not template.threads
    await render(_context(template), _chat(*[""] * 2048))


async def test_a_template_that_has_to_wait_too_long_is_a_503() -> None:
    with pytest.raises(ApiError) as caught:
        await render(_context(), _chat("hello", chat_template="{{ 1 }}"))
    assert caught.value.status == 503
    assert caught.value.headers["retry-after"]


@pytest.mark.parametrize(
    ("source", "fields", "text"),
    [
        ("{{ reasoning_effort }}", {"reasoning_effort": "high"}, "high"),
        ("{{ reasoning_effort | default('unset') }}", {}, "unset"),
        ("{{ reasoning_effort }}", {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": 3}}, "3"),
        ("{{ enable_thinking is false }}", {"reasoning_effort": "none"}, "True"),
        ("{{ thinking is false }}", {"reasoning_effort": "none"}, "True"),
        ("{{ enable_thinking is defined }}", {"reasoning_effort": "low"}, "False"),
        ("{{ enable_thinking }}", {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": 1}}, "1"),
        ("nothing", {"reasoning_effort": "max"}, "nothing"),
    ],
)
async def test_reasoning_effort_reaches_templates_that_read_it(source: str, fields: dict[str, Any], text: str) -> None:
    assert (await render(_context(ChatTemplate(source, {})), _chat("hello", **fields))).text == text


async def test_defaults_of_the_server_for_the_templates_arguments() -> None:
    context = _context(ChatTemplate("{{ enable_thinking }}", {}), enable_thinking=True)
    assert (await render(context, _chat("hello"))).text == "True"
    assert (await render(context, _chat("hello", reasoning_effort="none"))).text == "False"
    assert (await render(context, _chat("hello", chat_template_kwargs={"enable_thinking": 5}))).text == "5"


async def test_keys_of_messages_are_known_where_they_are_words_of_the_template() -> None:
    message = {"role": "user", "content": "x", "mood": 1, "my-key": 2, "id": 3, "-": 4, "key": 5}
    chat = ChatRequest(messages=[message])
    with noting(strict=False) as notes:
        await render(_context(ChatTemplate("{{ messages[0].mood }}{{ messages[0]['my-key'] }} idle", {})), chat)
    assert notes.unknown.header() == "messages[].id, messages[].-"
