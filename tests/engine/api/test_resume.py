"""Streams cut at every place where an engine can die, and gone on with: what the client reads is what it would have
read. On a real server whose model follows a script; that a real model goes on with the same tokens is shown in
``test_core_resume``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_support.anthropic_events import message_of
from engine_support.cut_streams import Cut, cut, groups_of, merged_stream, post_resume, responded
from engine_support.fake_engine import write_script
from engine_support.server_process import ServerProcess, running_server
from engine_support.tool_models import QWEN3, write_tool_model

from blade_protocol import headers

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ANTHROPIC = "/v1/messages"
MESSAGES: Any = [{"role": "user", "content": "Weather?"}]
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "\u5317\u4eac \u2600"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
USAGE = {"include_usage": True}
PLAIN = 'caf\u00e9 \u4e2d\u6587 \U0001f600 "quoted" text, and so on'
CHATS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (PLAIN, {"stream_options": USAGE}),
    "stop string": ("one two END three", {"stop": ["END", "nothing"], "stream_options": USAGE}),
    "stop token": ("one two!three", {"stop_token_ids": [36], "include_stop_str_in_output": True}),
    "length": (PLAIN, {"max_tokens": 12, "stream_options": USAGE}),
    "usage in every chunk": ("four words are enough", {"stream_options": USAGE | {"continuous_usage_stats": True}}),
    "logprobs": (PLAIN, {"logprobs": True, "top_logprobs": 1}),
    "token ids": (PLAIN, {"return_token_ids": True, "return_prompt_text": True}),
    "reasoning": ("<think>\nHm, 2 + 2.\n</think>\n\nFour.", {"stream_options": USAGE}),
    "hidden reasoning": ("<think>\nHm, 2 + 2.\n</think>\n\nFour.", {"include_reasoning": False}),
    "calls": (f"Let me see. {CALL}\n{CALL}", {"tools": [TOOL], "stream_options": USAGE}),
    "reasoning and a call": (f"<think>\nHm.\n</think>\n\n{CALL}", {"tools": [TOOL]}),
    "a call held to its schema": ("no", {"tools": [TOOL], "tool_choice": "required", "max_tokens": 60}),
    "guided": (
        '{"city": "x',
        {"response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA}}},
    ),
}
TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (PLAIN, {"stream_options": USAGE}),
    "echo": (PLAIN, {"echo": True}),
    "logprobs": (PLAIN, {"logprobs": 1}),
    "guided": ("b", {"guided_regex": "(a|b)c{4}d*"}),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tool_model(tmp_path_factory.mktemp("model") / "tools", QWEN3)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, model, "--max_num_seqs", "16", engine="scripted") as process:
        yield process


def resumed_everywhere(server: ServerProcess, stream: Cut) -> list[bytes]:
    """The client's bytes for a cut after each group, the last of which is the end."""
    assert len(stream.groups) > 1
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda groups: stream.resumed(server, groups), range(len(stream.groups))))


@pytest.mark.parametrize("case", CHATS)
def test_chats(server: ServerProcess, model: Path, case: str) -> None:
    script, fields = CHATS[case]
    write_script(model, ("Weather?", script))
    stream = cut(server, CHAT, messages=MESSAGES, **{"max_tokens": 200, **fields})
    whole = merged_stream(stream.data)
    assert any(name == "finish" for name, _ in whole[1:])
    for data in resumed_everywhere(server, stream):
        assert merged_stream(data) == whole
        assert _returned_ids(data) == _returned_ids(stream.data)


def _returned_ids(data: bytes) -> list[int]:
    chunks = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return [token_id for choice in choices for token_id in choice.get("token_ids", ())]


@pytest.mark.parametrize("case", TEXTS)
def test_completions(server: ServerProcess, model: Path, case: str) -> None:
    script, fields = TEXTS[case]
    write_script(model, ("Weather?", script))
    stream = cut(server, TEXT, prompt="Weather?", **{"max_tokens": 60, **fields})
    whole = merged_stream(stream.data)
    for data in resumed_everywhere(server, stream):
        assert merged_stream(data) == whole


@pytest.mark.parametrize("script", [PLAIN, f"<think>\nHm.\n</think>\n\nLet me see.\n{CALL}"])
def test_responses(server: ServerProcess, model: Path, script: str) -> None:
    write_script(model, ("Weather?", script))
    tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": False}
    stream = cut(server, RESPONSES, input=MESSAGES, tools=[tool])
    whole = responded(stream.data)
    assert whole[1]["status"] == "completed"
    for data in resumed_everywhere(server, stream):
        assert responded(data) == whole
    kept = f"{server.url}/v1/responses/{whole[1]['id']}"
    assert httpx.delete(kept).status_code == 200
    assert responded(stream.resumed(server, 1)) == whole
    assert httpx.get(kept).status_code == 404, "it is the one that began it that keeps it"


@pytest.mark.parametrize("groups", [1, -1])
def test_a_response_is_kept_where_its_stream_ends(server: ServerProcess, model: Path, groups: int) -> None:
    """For the caller of the engine that began it alone; also where nothing but the end was left to write."""
    write_script(model, ("Weather?", PLAIN), ("And now?", "Fine."))
    stream = cut(server, RESPONSES, input=MESSAGES)
    whole = responded(stream.data)
    name = whole[1]["id"]
    kept = f"{server.url}/v1/responses/{name}"
    assert httpx.delete(kept).status_code == 200
    groups %= len(stream.groups)
    assert responded(stream.resumed(server, groups, owner=["", "Bearer mine"])) == whole
    mine = {"authorization": "Bearer mine"}
    for other in ({}, {"authorization": "Bearer other"}, {**mine, headers.CALLER: "c"}):
        assert httpx.get(kept, headers=other).status_code == 404
    found = httpx.get(kept, headers=mine).json()
    assert found["output"][0]["content"][0]["text"] == PLAIN
    body = {"input": "And now?", "previous_response_id": name}
    after = httpx.post(server.url + RESPONSES, json=body, headers=mine, timeout=60).json()
    assert after["usage"]["input_tokens"] > found["usage"]["total_tokens"]
    assert httpx.delete(kept, headers=mine).status_code == 200
    stream.resumed(server, 1, owner=["caller", ""])
    assert httpx.get(kept, headers={headers.CALLER: "caller"}).status_code == 200


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        (PLAIN, {}),
        (f"<think>\nHm.\n</think>\n\nLet me see.\n{CALL}", {"thinking": {"type": "adaptive"}}),
        (f"<think>\nHm.\n</think>\n\n{CALL}\n{CALL}", {}),
        ("one two END three", {"stop_sequences": ["END"]}),
        (PLAIN, {"max_tokens": 12}),
    ],
    ids=["plain", "thinking", "hidden-thinking", "stop-sequence", "length"],
)
def test_messages(server: ServerProcess, model: Path, script: str, fields: dict[str, Any]) -> None:
    write_script(model, ("Weather?", script))
    tool = {"name": "get_weather", "input_schema": {"type": "object"}}
    stream = cut(server, ANTHROPIC, messages=MESSAGES, tools=[tool], **{"max_tokens": 200, **fields})
    whole = _message(stream.data)
    for data in resumed_everywhere(server, stream):
        assert _message(data) == whole


def _message(data: bytes) -> dict[str, Any]:
    """The message; how much of its prompt was cached is each engine's own."""
    message = message_of(data.decode())
    usage = message["usage"]
    message["usage"] = (usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"])
    return message


def test_the_ids_are_those_of_the_text(server: ServerProcess, model: Path) -> None:
    write_script(model, ("Weather?", PLAIN))
    stream = cut(server, TEXT, prompt="Weather?", max_tokens=100)
    assert stream.data.endswith(b"data: [DONE]\n\n")
    text, known = "", []
    for data, ids in stream.groups[:-1]:
        text += "".join(json.loads(line)["choices"][0]["text"] for line in data.decode().split("data: ")[1:])
        known += ids
        # A token may end within a character, whose beginning is held back.
        assert server.post("/detokenize", tokens=known).json()["prompt"].rstrip("\ufffd") == text
    assert stream.groups[-1][1] == [], "the end is of no use to another engine"


def test_without_the_header_nothing_is_added(server: ServerProcess, model: Path) -> None:
    write_script(model, ("Weather?", "short"))
    response = server.post(CHAT, messages=MESSAGES, stream=True)
    assert b"\n: " not in response.content
    assert headers.PROMPT_DIGEST not in response.headers


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": MESSAGES, "n": 2}),
        (CHAT, {"messages": MESSAGES, "beam_width": 2}),
        (TEXT, {"prompt": ["Weather?", "Weather?"]}),
        (TEXT, {"prompt": "Weather?", "echo": True, "logprobs": 1}),
    ],
)
def test_what_cannot_be_resumed_says_so(server: ServerProcess, model: Path, path: str, fields: dict[str, Any]) -> None:
    write_script(model, ("Weather?", "short"))
    response = httpx.post(
        server.url + path, json={**fields, "stream": True}, headers={headers.STREAM_IDS: "1"}, timeout=60
    )
    assert headers.PROMPT_DIGEST not in response.headers
    assert b"\n: " not in response.content
    body = {"path": path, "request": {**fields, "stream": True}, "request_id": "r", "created": 1, "seed": 1}
    refused = post_resume(server, {**body, "prompt_digest": "", "token_ids": [[40]]})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("this request cannot be resumed: it ")


def test_a_seed_is_taken_from_the_router_and_returned(server: ServerProcess, model: Path) -> None:
    write_script(model, ("Weather?", "short"))
    assert cut(server, CHAT, 77, messages=MESSAGES).headers[headers.SEED] == "77"
    assert cut(server, CHAT, 77, messages=MESSAGES, seed=5).headers[headers.SEED] == "5"
    first, second = (cut(server, CHAT, messages=MESSAGES).headers[headers.SEED] for _ in range(2))
    assert first != second
    wrong = httpx.post(server.url + CHAT, json={"messages": MESSAGES}, headers={headers.SEED: "x"}, timeout=60)
    assert wrong.status_code == 400


def test_a_resumed_stream_is_resumed_again(server: ServerProcess, model: Path) -> None:
    write_script(model, ("Weather?", f"Let me see. {CALL}"))
    stream = cut(server, CHAT, messages=MESSAGES, tools=[TOOL], stream_options=USAGE, max_tokens=100)
    whole = merged_stream(stream.data)
    step = 3
    while step < len(stream.groups):  # on a busy machine the rest has fewer
        response = post_resume(server, stream.resume_body(step))
        stream.groups[step:] = groups_of(response.content)
        assert merged_stream(stream.data) == whole
        step += 7


def test_what_differs_or_is_no_output_is_refused(server: ServerProcess, model: Path) -> None:
    write_script(model, ("Weather?", PLAIN))
    stream = cut(server, CHAT, messages=MESSAGES, max_tokens=40)

    def refused(**changed: Any) -> tuple[int, str]:
        response = post_resume(server, stream.resume_body(3, **changed))
        return response.status_code, response.json()["error"]["message"]

    assert refused(prompt_digest="0" * 64)[0] == 409
    assert refused(request={**stream.body, "temperature": 0.5})[0] == 409
    assert refused(request={**stream.body, "response_format": {"type": "json_object"}})[0] == 409
    assert refused(request={**stream.body, "messages": [{"role": "user", "content": "other"}]})[0] == 409
    assert refused(seed=3 if stream.headers[headers.SEED] != "3" else 4)[0] == 409
    for changed, complaint in (
        ({"token_ids": [[384]]}, "token_ids: 384 is not between 0 and 383"),
        ({"token_ids": [[-1]]}, "token_ids: -1 is not between 0 and 383"),
        ({"token_ids": [[40]] * 41}, "token_ids has 41 ids, but the answer has at most 40"),
        ({"token_ids": [["x"]]}, "this is no request to resume a stream"),
        ({"path": "/v1/embeddings"}, "path: '/v1/embeddings' has no streams here"),
        ({"request": {**stream.body, "stream": False}}, "it does not stream"),
        ({"request": {**stream.body, "logits_processors": ["x"]}}, "logits_processors"),
    ):
        status, message = refused(**changed)
        assert status == 400
        assert complaint in message


def test_ids_that_end_the_output_lead_to_its_end(server: ServerProcess, model: Path) -> None:
    write_script(model, ("Weather?", PLAIN))
    end = b"data: [DONE]\n\n: \n\n"

    def after(token_ids: list[list[int]], **fields: Any) -> bytes:
        stream = cut(server, TEXT, prompt="Weather?", **fields)
        return post_resume(server, stream.resume_body(0, token_ids=token_ids)).content

    assert after([[70], [71, 72]], max_tokens=3) == end
    assert after([[70], [71, 72]], max_tokens=9, stop_token_ids=[72]) == end
    ids = server.post("/tokenize", prompt="an END", add_special_tokens=False).json()["tokens"]
    assert after([ids], max_tokens=9, stop=["END"]) == end
    ((finish, _),) = groups_of(after([[70], [2]], max_tokens=9))
    assert b'"finish_reason":"stop"' in finish
    server.wait_idle()


def test_a_drain_that_runs_out_of_time_hands_streams_over(tmp_path: Path, model: Path) -> None:
    write_script(model, ("Weather?", "word " * 300))
    flags = ("--drain_timeout", "0.2")
    with running_server(tmp_path, model, *flags, engine="scripted") as old:
        body = {"messages": MESSAGES, "stream": True, "max_tokens": 900}
        with httpx.stream("POST", old.url + CHAT, json=body, headers={headers.STREAM_IDS: "1"}, timeout=60) as response:
            chunks = response.iter_bytes()
            content = next(chunks)
            old.process.terminate()
            content += b"".join(chunks)
    assert content.endswith(b": lost\n\n")
    assert b"error" not in content
    assert groups_of(content.removesuffix(b": lost\n\n"))
