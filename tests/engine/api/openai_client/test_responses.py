"""Every field of ``/v1/responses`` through the official client, sync and async, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest
from engine_support.openai_calls import Way, chat, each_way, response
from engine_support.server_process import ServerProcess

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
WHOLE = Way(False, False)


def _final(server: ServerProcess, way: Way, **fields: Any) -> Any:
    return response(server, way, **fields).raw[-1]


@each_way
def test_the_output_is_that_of_the_chat(server: ServerProcess, way: Way) -> None:
    final = _final(server, way, instructions="be brief", **GREEDY)
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    assert final.output_text == chat(server, WHOLE, messages=messages, **GREEDY).text
    assert final.object == "response"
    assert final.model == "tiny-chat"
    assert final.instructions == "be brief"


@each_way
def test_number_of_tokens(server: ServerProcess, way: Way) -> None:
    final = _final(server, way, max_output_tokens=5, **GREEDY)
    assert (final.status, final.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert final.output[0].status == "incomplete"
    assert final.max_output_tokens == 5
    usage = final.usage
    assert (usage.output_tokens, usage.total_tokens) == (5, usage.input_tokens + 5)
    assert usage.output_tokens_details.reasoning_tokens == 0


@each_way
def test_completed(server: ServerProcess, way: Way) -> None:
    final = _final(server, way, max_output_tokens=None, temperature=1, seed=3)
    assert (final.status, final.incomplete_details, final.error) == ("completed", None, None)
    assert final.output[0].status == "completed"
    assert final.completed_at >= final.created_at


@each_way
def test_an_empty_output_is_a_message(server: ServerProcess, way: Way) -> None:
    (message,) = _final(server, way, stop_token_ids=list(range(97)), **GREEDY).output
    assert [part.text for part in message.content] == [""]


@each_way
def test_items(server: ServerProcess, way: Way) -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be brief"}]},
        {"role": "user", "content": "one"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "two", "annotations": []}],
        },
        {"role": "user", "content": [{"type": "input_text", "text": "three"}, {"type": "input_text", "text": "four"}]},
    ]
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three\nfour"},
    ]
    assert (
        _final(server, way, input=items, **GREEDY).output_text == chat(server, WHOLE, messages=messages, **GREEDY).text
    )


@each_way
def test_the_output_goes_back_into_the_input(server: ServerProcess, way: Way) -> None:
    first = _final(server, way, **GREEDY)
    items = [{"role": "user", "content": "hello"}, *first.output, {"role": "user", "content": "more"}]
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "more"},
    ]
    assert (
        _final(server, way, input=items, **GREEDY).output_text == chat(server, WHOLE, messages=messages, **GREEDY).text
    )


@each_way
@pytest.mark.parametrize("number", [None, 3])
def test_logprobs(server: ServerProcess, way: Way, number: int | None) -> None:
    reply = response(server, way, include=["message.output_text.logprobs"], top_logprobs=number, **GREEDY)
    final = reply.raw[-1]
    (part,) = final.output[0].content
    assert "".join(entry.token for entry in part.logprobs) == part.text
    assert {len(entry.top_logprobs) for entry in part.logprobs} == {number or 0}
    if way.streaming:
        events = [event for event in reply.raw[:-1] if event.type == "response.output_text.delta"]
        assert [entry.token for event in events for entry in event.logprobs] == [e.token for e in part.logprobs]


@each_way
def test_the_requests_fields_are_repeated(server: ServerProcess, way: Way) -> None:
    given = {
        "metadata": {"a": "b"},
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "temperature": 0.5,
        "top_p": 0.9,
        "parallel_tool_calls": False,
        "max_tool_calls": 3,
        "truncation": "disabled",
        "background": False,
    }
    final = _final(server, way, **given)
    assert {name: getattr(final, name) for name in given} == given
    final = _final(server, way, reasoning={"effort": "low", "summary": "auto"}, text={"verbosity": "low"})
    assert (final.reasoning.effort, final.reasoning.summary) == ("low", "auto")
    assert (final.text.verbosity, final.text.format.type) == ("low", "text")


@each_way
@pytest.mark.parametrize(
    "fields",
    [
        {"store": False, "service_tier": "auto", "prompt_cache_retention": "24h"},
        {"include": ["reasoning.encrypted_content"]},
        {"min_p": 0.1, "logit_bias": {"5": 3}, "chat_template_kwargs": {"x": 1}},
        {"top_k": 3, "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.5},
        {"min_tokens": 2, "skip_special_tokens": False, "priority": 1, "cache_salt": "s"},
        {"previous_response_id": None, "conversation": None, "prompt": None, "tools": []},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_accepted(server: ServerProcess, way: Way, fields: dict[str, Any]) -> None:
    assert _final(server, way, **fields).store is fields.get("store", True)


@each_way
def test_stop_and_seed(server: ServerProcess, way: Way) -> None:
    def text(**fields: Any) -> str:
        found: str = _final(
            server, way, max_output_tokens=30, temperature=1, seed=5, ignore_eos=True, **fields
        ).output_text
        return found

    whole = text()
    stop = whole[9:12]
    assert text(stop=stop) == whole[: whole.index(stop)]


def test_the_client_s_own_stream_helper(server: ServerProcess) -> None:
    with server.client.responses.stream(model="tiny-chat", input="hello", temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text
