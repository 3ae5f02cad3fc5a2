"""What coding agents send, field by field, through a whole tool loop: recorded from Codex 0.171, QwenCode and opencode
1.18, with their long texts cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from engine_support.agent_server import agent_server, call
from engine_support.openai_streams import check_chat_stream, check_response_stream, chunks_of, response_events
from engine_support.server_process import ServerProcess

from blade_protocol import headers

PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\n+x = 2\n*** End Patch\n"
GRAMMAR = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: "*** Update File: " filename LF change
filename: /(.+)/
change: (change_context | change_line)+
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
%import common.LF
"""
EXEC = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command in a PTY, returning output or a session ID for ongoing interaction.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {
            "cmd": {"type": "string", "description": "Shell command to execute."},
            "login": {"type": "boolean", "description": "Request login-shell startup."},
            "max_output_tokens": {"type": "number"},
            "prefix_rule": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["cmd"],
        "additionalProperties": False,
    },
}
CODEX_TOOLS = [
    EXEC,
    {
        "type": "namespace",
        "name": "multi_agent_v1",
        "description": "Tools for spawning and managing sub-agents.",
        "tools": [{**EXEC, "name": "spawn_agent", "description": "Starts one."}],
    },
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits files. This is a FREEFORM tool, so do not wrap the patch in JSON.",
        "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR},
    },
    {"type": "web_search", "external_web_access": False},
]


def _message(role: str, text: str) -> dict[str, Any]:
    part = {"type": "input_text", "text": text}
    return {"type": "message", "id": f"msg_{role}", "role": role, "content": [part]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    thinking = "<think>\nI look first.\n</think>\n\n"
    with agent_server(
        tmp_path_factory.mktemp("agents"),
        ("change x", thinking + call("exec_command", {"cmd": "cat a.py"})),
        ("x = 1", call("apply_patch", {"input": PATCH})),
        ("Updated", call("multi_agent_v1__spawn_agent", {"cmd": "review"})),
        ("reviewed", "x is 2 now."),
    ) as process:
        yield process


def test_codex(server: ServerProcess) -> None:
    """It echoes what it got, keeps the conversation itself, and reads the events by their names."""
    items: list[dict[str, Any]] = [
        _message("developer", "You are a coding agent running in the Codex CLI."),
        _message("developer", "<skills_instructions>\n## Skills\n</skills_instructions>"),
        _message("user", "<environment_context>\n  <cwd>/work</cwd>\n  <shell>bash</shell>\n</environment_context>"),
        _message("user", "Please change x"),
    ]
    outputs = iter(["Chunk ID: 1\nOutput:\nx = 1\n", "Success. Updated the following files:\nM a.py\n", "reviewed"])
    called: list[tuple[str, ...]] = []
    while True:
        body = {
            "model": "tools",
            "instructions": "You are Codex.",
            "input": items,
            "tools": CODEX_TOOLS,
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "01a22870-0871-7731-b131-5998d69e713f",
            "client_metadata": {"session_id": "01a22870", "x-codex-turn-metadata": '{"window_number":0}'},
        }
        found = httpx.post(f"{server.url}/v1/responses", json=body, headers={"accept": "text/event-stream"}, timeout=60)
        assert found.status_code == 200, found.text
        assert found.headers[headers.IGNORED] == "tools[2].format, tools[3].web_search"
        final = check_response_stream(response_events(found))
        assert (final["status"], final["store"]) == ("completed", False)
        items += final["output"]
        calls = [item for item in final["output"] if item["type"].endswith("_call")]
        if not calls:
            break
        (made,) = calls
        called.append((made["type"], made.get("namespace", ""), made["name"]))
        if made["type"] == "custom_tool_call":
            assert made["input"] == PATCH
        items.append({"type": f"{made['type']}_output", "call_id": made["call_id"], "output": next(outputs)})
    assert called == [
        ("function_call", "", "exec_command"),
        ("custom_tool_call", "", "apply_patch"),
        ("function_call", "multi_agent_v1", "spawn_agent"),
    ]
    assert items[-1]["content"][0]["text"] == "x is 2 now."
    assert sum(item["type"] == "reasoning" for item in items) == 1


CHAT_TOOL = {"type": "function", "function": {key: EXEC[key] for key in ("name", "description", "parameters")}}
QWEN_CODE: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "You are Qwen Code, an interactive CLI agent developed by Alibaba Group."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "This is the Qwen Code. We set up the context."}],
        },
        {"role": "assistant", "content": "Got it. Thanks for the context!"},
        {"role": "user", "content": [{"type": "text", "text": "Please change x"}]},
    ],
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 8000,
}
OPENCODE: dict[str, Any] = {
    "max_tokens": 32000,
    "messages": [
        {"role": "system", "content": "You are opencode, an interactive CLI tool that helps users."},
        {"role": "user", "content": '"Please change x"'},
    ],
    "tool_choice": "auto",
    "stream": True,
    "stream_options": {"include_usage": True},
}


@pytest.mark.parametrize("body", [QWEN_CODE, OPENCODE], ids=["qwen-code", "opencode"])
def test_agents_that_chat(server: ServerProcess, body: dict[str, Any]) -> None:
    """They join the deltas of the stream, and send text and calls back as one message."""
    messages = [*body["messages"]]
    for output in ("x is unknown", "reviewed"):
        found = server.post("/v1/chat/completions", model="tools", **{**body, "messages": messages}, tools=[CHAT_TOOL])
        assert found.status_code == 200, found.text
        chunks = chunks_of(found)
        check_chat_stream(chunks, usage=True)
        assert chunks[-1]["usage"]["completion_tokens"] > 0
        deltas = [piece for chunk in chunks for choice in chunk["choices"] for piece in [choice["delta"]]]
        pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
        arguments = "".join(piece["function"].get("arguments", "") for piece in pieces)
        assert (pieces[0]["function"]["name"], json.loads(arguments)) == ("exec_command", {"cmd": "cat a.py"})
        content = "".join(delta.get("content") or "" for delta in deltas)
        function = {"name": "exec_command", "arguments": arguments}
        made = {"id": pieces[0]["id"], "type": "function", "function": function}
        messages.append({"role": "assistant", "content": content or None, "tool_calls": [made]})
        messages.append({"role": "tool", "tool_call_id": made["id"], "content": output})
        if output != "reviewed":
            messages.append({"role": "user", "content": "Please change x"})
    last = server.post("/v1/chat/completions", model="tools", **{**body, "messages": messages}, tools=[CHAT_TOOL])
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks_of(last) for choice in chunk["choices"])
    assert text == "x is 2 now."
