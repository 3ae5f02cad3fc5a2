"""How prompts are made of what requests say: templates, continued messages, truncation, filling in."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from engine_support.server_process import ServerProcess
from engine_support.tiny_text import byte_level_tokenizer, write_tokenizer
from tokenizers import AddedToken, Regex, pre_tokenizers

from blade_llm.api.chat import _generated_text
from blade_llm.api.chat_request import ChatRequest
from blade_llm.api.common.errors import ApiError
from blade_llm.api.generation.prompt_tokens import encode_text
from blade_llm.text.infill import infill_of
from blade_llm.text.tokenizer import Tokenizer

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
TALK = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": " the quick "}]


def _chat(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    response = server.post(CHAT, **{"messages": TALK, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def _complete(server: ServerProcess, prompt: Any, **fields: Any) -> dict[str, Any]:
    fields = {"max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields}
    body: dict[str, Any] = server.post(TEXT, prompt=prompt, **fields).json()
    return body


def _same(chat: dict[str, Any], completion: dict[str, Any]) -> None:
    assert chat["usage"]["prompt_tokens"] == completion["usage"]["prompt_tokens"]
    assert chat["choices"][0]["message"]["content"] == completion["choices"][0]["text"]


def test_the_last_message_goes_on(server: ServerProcess) -> None:
    prompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n the quick "
    _same(_chat(server, continue_final_message=True), _complete(server, prompt))
    _same(_chat(server, messages=TALK[:1], resume_response=" the quick "), _complete(server, prompt))
    begun = "<|im_start|>user\nhello<|im_end|>\n"
    _same(_chat(server, messages=TALK[:1], add_generation_prompt=False), _complete(server, begun))


def test_the_last_message_goes_on_in_parts_too(server: ServerProcess) -> None:
    parts = [{"type": "text", "text": "<think>\nwell"}, {"type": "refusal", "refusal": "no"}]
    messages = [TALK[0], {"role": "assistant", "content": parts}]
    prompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n<think>\nwell\nno"
    _same(_chat(server, messages=messages, continue_final_message=True), _complete(server, prompt))
    assert _generated_text(ChatRequest(messages=messages, continue_final_message=True)) == "<think>\nwell\nno"
    assert _generated_text(ChatRequest(messages=messages)) == ""


def test_a_developer_message_is_a_system_message(server: ServerProcess) -> None:
    """Templates that know no such role leave its messages out."""
    by_role = "{% for m in messages if m.role in ('system', 'user') %}{{ m.content }};{% endfor %}"
    for role in ("system", "developer"):
        messages = [{"role": role, "content": "be brief"}, TALK[0]]
        _same(_chat(server, messages=messages, chat_template=by_role), _complete(server, "be brief;hello;"))


def test_a_template_in_the_request(server: ServerProcess) -> None:
    template = "{% for d in documents %}{{ d.text }};{% endfor %}{{ messages[0].content }}{{ mood }}{{ eos_token }}"
    found = _chat(
        server, chat_template=template, chat_template_kwargs={"mood": "!"}, documents=[{"text": "a"}, {"text": "b"}]
    )
    _same(found, _complete(server, "a;b;hello!<|im_end|>"))


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "more than 2 s"),
        ("{{ 'x' * 10 ** 10 }}", "memory"),
        ("{{ 'x' * 10 ** 7 }}", "characters"),
        ("{{ 9 ** (9 ** 9) }}", "more than 2 s"),
        ("{% if %}", "line 1"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("", "empty prompt"),
    ],
)
def test_a_bad_template_hurts_nobody_else(server: ServerProcess, template: str, says: str) -> None:
    response = server.post(CHAT, messages=TALK, chat_template=template, stream=True)
    assert response.status_code == 400
    error = response.json()["error"]
    assert says in error["message"]
    assert error["param"] == ("messages" if says == "empty prompt" else "chat_template")
    assert _chat(server, chat_template="{{ messages[0].content }}")["usage"]["prompt_tokens"] > 0


@pytest.mark.parametrize("template", [None, "{{ messages[0].content }}{{ x }}"])
def test_odd_values_in_a_conversation(server: ServerProcess, template: str | None) -> None:
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    for value in (2**70, deep, "\U0001f600"):
        arguments = {"x": value}
        response = server.post(
            CHAT,
            messages=[{**TALK[0], **arguments}],
            chat_template=template,
            chat_template_kwargs=arguments,
            max_tokens=1,
        )
        assert response.status_code in (200, 400), value


def test_contradictions(server: ServerProcess) -> None:
    for fields, param in (
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"continue_final_message": True, "resume_response": "x"}, "resume_response"),
        ({"continue_final_message": True, "chat_template": "{{ 1 }}"}, "continue_final_message"),
    ):
        response = server.post(CHAT, messages=TALK, **fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param


def test_a_prompt_is_cut_at_its_beginning(server: ServerProcess) -> None:
    cut, whole = _complete(server, [40, 41, 42, 43], truncate_prompt_tokens=2), _complete(server, [42, 43])
    assert cut["choices"][0]["text"] == whole["choices"][0]["text"]
    assert cut["usage"] == whole["usage"]
    longest = _complete(server, [40] * 3000, truncate_prompt_tokens=-1)
    assert longest["usage"]["prompt_tokens"] == 2044
    assert _chat(server, truncate_prompt_tokens=3)["usage"]["prompt_tokens"] == 3


def test_filling_in(tmp_path: Path) -> None:
    marks = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")
    backend = byte_level_tokenizer()
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    tokenizer = Tokenizer(write_tokenizer(tmp_path, backend))
    infill = infill_of(tokenizer)
    assert infill is not None
    hello, world = (tokenizer.encode(text) for text in ("hello", "world"))
    ids = infill.join(hello, world, add_special_tokens=True)
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|fim_prefix|>hello<|fim_suffix|>world<|fim_middle|>"
    assert {tokenizer.token_id(mark) for mark in (*marks, "<|endoftext|>")} == set(infill.end_ids)
    assert infill_of(Tokenizer(write_tokenizer(tmp_path / "plain"))) is None


def test_a_suffix_and_truncation_contradict_each_other(server: ServerProcess) -> None:
    response = server.post(TEXT, prompt="hello", suffix="world", truncate_prompt_tokens=2)
    assert response.status_code == 400
    assert "truncate_prompt_tokens" in response.json()["error"]["message"]


def test_texts_that_cannot_fit(server: ServerProcess) -> None:
    text = "x" * 1_000_001
    talk = [{"role": "user", "content": text}]
    for path, fields, param in (
        (TEXT, {"prompt": text}, "prompt"),
        ("/v1/embeddings", {"input": text}, "input"),
        (CHAT, {"messages": talk}, "messages"),
    ):
        error = server.post(path, **fields).json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)
        assert "characters" in error["message"]
    assert server.post("/tokenize", prompt=text[1:]).json()["count"] == 1_000_000
    spelled = server.post("/tokenize", prompt=text[:30_000], return_token_strs=True).json()["token_strs"]
    assert spelled == ["x"] * 30_000
    for path, fields, param in (
        ("/tokenize", {"prompt": text}, "prompt"),
        ("/tokenize", {"messages": talk}, "messages"),
        ("/detokenize", {"tokens": [40] * 1_000_001}, "tokens"),
    ):
        response = server.post(path, **fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
    assert server.post("/detokenize", tokens=[384] * 30_000).json()["error"]["param"] == "tokens"
    assert _complete(server, text, truncate_prompt_tokens=5)["usage"]["prompt_tokens"] == 5


def test_stop_tokens_are_shown_where_requested(server: ServerProcess) -> None:
    free = _complete(server, [40, 41], max_tokens=9, logprobs=0, return_tokens_as_token_ids=True)["choices"][0]
    stop = int(free["logprobs"]["tokens"][4].partition(":")[2])
    fields = {"max_tokens": 9, "stop_token_ids": [stop]}
    hidden = _complete(server, [40, 41], **fields)["choices"][0]
    shown = _complete(server, [40, 41], **fields, include_stop_str_in_output=True)["choices"][0]
    assert hidden["stop_reason"] == shown["stop_reason"] == stop
    assert len(shown["text"]) > len(hidden["text"])
    assert free["text"].startswith(shown["text"])
    text = _complete(server, [40, 41], max_tokens=9, stop=[free["text"][2:4]])["choices"][0]
    assert text["stop_reason"] == free["text"][2:4]


@pytest.mark.parametrize("length", [40, 30_000])
def test_a_text_that_the_tokenizer_gives_up_on_is_refused(length: int, tmp_path: Path) -> None:
    """Its library panics then, in the event loop or in a thread."""
    backend = byte_level_tokenizer()
    split = pre_tokenizers.Split(Regex("(a+)+(?!a)b"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer = Tokenizer(write_tokenizer(tmp_path, backend))
    text = "c" * (length - 40) + "a" * 40 + "c"
    with pytest.raises(ApiError, match="prompt: the model's tokenizer gives up on this text") as caught:
        asyncio.run(encode_text(tokenizer, text, add_special_tokens=True))
    assert caught.value.status == 400
