"""``/v1/messages`` of a server whose model says what a script says: whole and streamed, events, errors, counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from engine_support.anthropic_events import events_of, message_of
from engine_support.fake_engine import write_script
from engine_support.server_process import ServerProcess, running_server
from engine_support.tool_models import QWEN3, write_tool_model

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "Of today", "input_schema": PARAMETERS}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
THOUGHT = "<think>\nI must look.\n</think>\n\n"
each_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = write_tool_model(tmp_path_factory.mktemp("model") / "tools", QWEN3)
    write_script(
        folder,
        ("Oslo", f"{THOUGHT}Let me see.\n{CALL}\n{CALL}"),
        ("cold", "It is cold."),
        ("hot", f"{THOUGHT}It is hot."),
        ("long", "abc " * 1000),
        ("nothing", ""),
    )
    with running_server(tmp_path_factory.mktemp("server"), folder, engine="scripted") as process:
        yield process


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def post(server: ServerProcess, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
    return server.post(path, **{"model": "tools", "max_tokens": 300, **fields})


def message(server: ServerProcess, stream: bool, content: Any, **fields: Any) -> dict[str, Any]:
    given = fields.pop("messages", None) or [user(content)]
    response = post(server, messages=given, stream=stream, **fields)
    assert response.status_code == 200, response.text
    if not stream:
        found: dict[str, Any] = response.json()
        return found
    assert response.headers["content-type"].startswith("text/event-stream")
    return message_of(response.text)


@each_way
def test_text(server: ServerProcess, stream: bool) -> None:
    found = message(server, stream, "cold")
    assert (found["type"], found["role"], found["model"]) == ("message", "assistant", "tools")
    assert found["content"] == [{"type": "text", "text": "It is cold."}]
    assert (found["stop_reason"], found["stop_sequence"]) == ("end_turn", None)
    assert found["id"].startswith("msg_")
    count = server.post("/tokenize", prompt="It is cold.", add_special_tokens=False).json()["count"]
    assert found["usage"]["output_tokens"] == count + 1, "the last one ends the sequence"


@each_way
def test_an_empty_message_has_a_text(server: ServerProcess, stream: bool) -> None:
    assert message(server, stream, "nothing")["content"] == [{"type": "text", "text": ""}]


@each_way
def test_thinking_text_and_calls(server: ServerProcess, stream: bool) -> None:
    found = message(server, stream, "Oslo", tools=[WEATHER], **THINKING)
    thought, said, *calls = found["content"]
    assert (thought["type"], thought["thinking"], len(thought["signature"])) == ("thinking", "I must look.", 64)
    assert said == {"type": "text", "text": "Let me see."}
    assert [(call["type"], call["name"], call["input"]) for call in calls] == [
        ("tool_use", "weather", {"city": "Oslo"})
    ] * 2
    assert len({call["id"] for call in calls}) == 2
    assert all(call["id"].startswith("toolu_") for call in calls)
    assert found["stop_reason"] == "tool_use"
    assert found["usage"]["output_tokens_details"]["thinking_tokens"] > 0


def test_the_order_of_events(server: ServerProcess) -> None:
    events = events_of(post(server, messages=[user("Oslo")], tools=[WEATHER], stream=True, **THINKING).text)
    kinds = [(event["type"], event.get("delta", {}).get("type")) for event in events]
    once = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]

    def block(*deltas: str) -> list[tuple[str, str | None]]:
        return [("content_block_start", None), *(("content_block_delta", delta) for delta in deltas)]

    stop = ("content_block_stop", None)
    assert once == [
        ("message_start", None),
        *(("content_block_start", None), ("ping", None)),
        *block("thinking_delta", "signature_delta")[1:],
        stop,
        *block("text_delta"),
        stop,
        *block("input_json_delta"),
        stop,
        *block("input_json_delta"),
        stop,
        ("message_delta", None),
        ("message_stop", None),
    ]
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-1] == {"type": "message_stop"}


@each_way
@pytest.mark.parametrize(
    ("thinking", "shown"),
    [
        (None, []),
        ({"type": "disabled"}, []),
        ({"type": "adaptive"}, ["I must look."]),
        ({"type": "adaptive", "display": "omitted"}, [""]),
    ],
    ids=["none", "disabled", "adaptive", "omitted"],
)
def test_thinking_is_shown_where_it_is_wanted(
    server: ServerProcess, stream: bool, thinking: Any, shown: list[str]
) -> None:
    found = message(server, stream, "hot", thinking=thinking)
    assert [block["thinking"] for block in found["content"] if block["type"] == "thinking"] == shown
    assert found["content"][-1] == {"type": "text", "text": "It is hot."}


@each_way
def test_why_it_stopped(server: ServerProcess, stream: bool) -> None:
    def stops(**fields: Any) -> tuple[str, str | None, str]:
        found = message(server, stream, "long", **fields)
        return found["stop_reason"], found["stop_sequence"], found["content"][0]["text"]

    assert stops(max_tokens=3) == ("max_tokens", None, "abc")
    assert stops(stop_sequences=["x", "c a"]) == ("stop_sequence", "c a", "ab")
    assert stops(max_tokens=1_000_000)[0] == "model_context_window_exceeded"
    named = message(server, stream, "Oslo", tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"})
    assert named["stop_reason"] == "tool_use"
    assert [block["type"] for block in named["content"]] == ["tool_use"]


def test_a_call_that_is_cut_has_no_input(server: ServerProcess) -> None:
    choice = {"tools": [WEATHER], "tool_choice": {"type": "any"}}
    found = message(server, False, "Oslo", max_tokens=52, **choice)
    assert (found["stop_reason"], found["content"][-1]["type"], found["content"][-1]["input"]) == (
        "max_tokens",
        "tool_use",
        {},
    )


@each_way
def test_structured_output(server: ServerProcess, stream: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    for field in (
        {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        {"output_format": {"type": "json_schema", "schema": schema}},
    ):
        assert message(server, stream, "cold", **field)["content"] == [{"type": "text", "text": '{"a": 1}'}]


def test_the_same_prompt_as_the_chat(server: ServerProcess) -> None:
    call = {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    function = {"name": "weather", "description": "Of today", "parameters": PARAMETERS}
    chat = server.post(
        "/tokenize",
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "cold"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "toolu_1", "content": "3 degrees"},
        ],
        tools=[{"type": "function", "function": function}],
        reasoning_effort="none",
    ).json()
    body: dict[str, Any] = {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            user("cold"),
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}],
            },
            user([{"type": "tool_result", "tool_use_id": "toolu_1", "content": "3 degrees"}]),
        ],
        "tools": [WEATHER],
    }
    assert post(server, "/v1/messages/count_tokens", **body).json() == {"input_tokens": chat["count"]}
    usage = post(server, **body).json()["usage"]
    again = post(server, **body).json()["usage"]
    for each in (usage, again):
        assert each["input_tokens"] + each["cache_read_input_tokens"] == chat["count"]
    assert again["cache_read_input_tokens"] > 0
    assert again["cache_creation_input_tokens"] == 0


def test_an_answer_is_continued(server: ServerProcess) -> None:
    begun = [user("say it is"), {"role": "assistant", "content": "cold"}]
    assert message(server, False, "", messages=begun)["content"][0]["text"] == "It is cold."
    count = post(server, "/v1/messages/count_tokens", messages=begun).json()["input_tokens"]
    whole = post(server, "/v1/messages/count_tokens", messages=[*begun, user("")]).json()["input_tokens"]
    assert count < whole, "nothing stands behind the beginning"


def test_tools_that_run_elsewhere_are_left_out(server: ServerProcess) -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    response = post(server, messages=[user("Oslo")], tools=[search, WEATHER])
    assert response.headers["x-blade-ignored"] == "tools[0].web_search_20250305"
    alone = post(server, messages=[user("cold")], tools=[search])
    assert alone.json()["content"][0]["text"] == "It is cold."


def _error(response: httpx.Response, status: int, kind: str) -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    assert set(body["error"]) <= {"type", "message", "code", "details"}
    return str(body["error"]["message"])


@pytest.mark.parametrize(
    ("fields", "status", "kind", "message"),
    [
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"max_tokens": None}, 400, "invalid_request_error", "'max_tokens' is required"),
        ({"temperature": "warm"}, 400, "invalid_request_error", "temperature"),
        ({"model": "claude-x"}, 404, "not_found_error", "claude-x"),
        (
            {"messages": [user([{"type": "image", "source": {}}])]},
            400,
            "invalid_request_error",
            "messages[0].content[0].source.type must be base64 or url",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "invalid_request_error", "bash_20250124"),
        (
            {
                "tools": [
                    {**WEATHER, "strict": True, "input_schema": {"type": "object", "properties": {"a": {"$ref": 3}}}}
                ]
            },
            400,
            "invalid_request_error",
            "tools.0.input_schema",
        ),
        (
            {"tools": [{"type": "web_search_20250305", "name": "w"}, {**WEATHER, "input_schema": {"type": "array"}}]},
            400,
            "invalid_request_error",
            "tools[1]",
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "thing"}}}},
            400,
            "invalid_request_error",
            "output_config.format",
        ),
        ({"min_tokens": 500}, 400, "invalid_request_error", "min_tokens"),
        (
            {"messages": [user("x" * 3000)]},
            400,
            "invalid_request_error",
            "prompt is too long: 3025 tokens > 2047 maximum",
        ),
    ],
)
@each_way
def test_errors(
    server: ServerProcess, stream: bool, fields: dict[str, Any], status: int, kind: str, message: str
) -> None:
    response = post(server, **{"messages": [user("cold")], "stream": stream, **fields})
    assert message in _error(response, status, kind)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("source", [{"type": "base64", "media_type": "image/png", "data": "QQ=="}, "url"])
def test_a_text_model_refuses_an_image_by_its_place(server: ServerProcess, path: str, source: Any) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://a.example"} if source == "url" else source}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "a"}, image]}
    places = {
        "messages[1].content[1]": user([{"type": "text", "text": "a"}, image]),
        "messages[1].content[0].content[1]": user([result]),
    }
    for place, given in places.items():
        response = post(server, path, messages=[user("cold"), given])
        complaint = _error(response, 400, "invalid_request_error")
        assert complaint.startswith(f"{place}: image is not supported by this model"), complaint


def test_errors_of_http(server: ServerProcess) -> None:
    url, json = f"{server.url}/v1/messages", {"content-type": "application/json"}
    _error(httpx.post(url, content=b"{", headers=json), 400, "invalid_request_error")
    _error(httpx.post(url, content=b"{}"), 415, "invalid_request_error")
    _error(httpx.post(url, content=b"x" * (17 << 20), headers=json), 413, "request_too_large")
    _error(httpx.get(url), 405, "invalid_request_error")
    _error(httpx.post(f"{url}/batches", json={}), 404, "not_found_error")
    _error(httpx.post(f"{url}/count_tokens", json={"messages": []}), 400, "invalid_request_error")
    other = httpx.post(url, json={}, headers={"host": "evil.example"})
    _error(other, 403, "permission_error")
    assert "type" not in httpx.post(f"{server.url}/v1/chat/completions", json={}).json(), "elsewhere as before"


def test_what_clients_of_anthropic_send(server: ServerProcess) -> None:
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01", "anthropic-beta": "a,b", "x-request-id": "r-1"}
    body = {
        "model": "tools",
        "max_tokens": 300,
        "messages": [user("cold")],
        "metadata": {"user_id": "u"},
        "context_management": {"edits": []},
        "service_tier": "auto",
    }
    response = httpx.post(f"{server.url}/v1/messages?beta=true", json=body, headers=headers)
    assert (response.status_code, response.headers["request-id"], response.json()["id"]) == (200, "r-1", "msg_r-1")


def test_very_many_blocks(server: ServerProcess) -> None:
    few = [{"type": "text", "text": "cold"}]
    many = [{"type": "text", "text": ""}] * 5_000 + few
    counts = [
        post(server, "/v1/messages/count_tokens", messages=[user(content)]).json()["input_tokens"]
        for content in (few, many)
    ]
    assert counts[0] == counts[1]
    assert message(server, False, many)["content"][0]["text"] == "It is cold."
