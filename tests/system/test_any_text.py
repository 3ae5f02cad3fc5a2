"""What a model can write, a conversation can hold: every character passes router and engine; halves of one do not."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_support.server_process import running_server
from engine_support.tool_models import write_tool_model
from router_support.serving import serving

from blade_protocol.routing import EndpointConfig

ODD = "".join(map(chr, [*range(0x20), 0x7F, *range(0x80, 0xA0), 0x2028, 0xFEFF, 0xFFFE, 0xFFFF, 0x1F680]))
"""Every control character, line ends that JavaScript has, and characters that are none."""
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": ODD})}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": ODD},
    {"role": "user", "content": [{"type": "text", "text": ODD}]},
    {"role": "assistant", "content": ODD, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": ODD},
    {"role": "user", "content": "\0"},
]
TOOL = {"type": "function", "function": {"name": "f", "description": ODD, "parameters": {"type": "object"}}}
SHORT = {"max_tokens": 2, "ignore_eos": True}
TAKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "messages": ("/v1/chat/completions", {"messages": CONVERSATION, **SHORT}),
    "tools": ("/v1/chat/completions", {"messages": CONVERSATION, "tools": [TOOL], "max_tokens": 2}),
    "stop": ("/v1/chat/completions", {"messages": CONVERSATION, "stop": ["\0", ODD], **SHORT}),
    "a template of its own": (
        "/v1/chat/completions",
        {"messages": CONVERSATION, "chat_template": "\0{{ messages[0].content }}", **SHORT},
    ),
    "prompt": ("/v1/completions", {"prompt": ODD, "echo": True, **SHORT}),
    "prompts": ("/v1/completions", {"prompt": ["\0", ODD], **SHORT}),
    "a large prompt": ("/v1/completions", {"prompt": "\0" * 100_000, "truncate_prompt_tokens": 8, **SHORT}),
    "input": ("/v1/responses", {"input": ODD, "instructions": ODD, "max_output_tokens": 2}),
    "embeddings": ("/v1/embeddings", {"input": [ODD, "\0"]}),
    "tokenize": ("/tokenize", {"prompt": ODD}),
}


async def test_every_character_passes_and_no_half_of_one(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "blade_router")
    model = write_tool_model(tmp_path / "tiny-chat")
    log = tmp_path / "access.log"
    with running_server(tmp_path_factory.mktemp("s"), model, "--max_num_seqs", "8", "--log_level", "DEBUG") as server:
        endpoint = EndpointConfig(url=server.url, internal_url=server.internal_url, name="a", revision="r")
        direct = httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False)
        async with direct, serving(endpoints=(endpoint,), wait=False, access_log=str(log)) as router:
            clients = (direct, router.client)
            for name, (path, body) in TAKEN.items():
                for stream in (False, True) if path.startswith("/v1/") and path != "/v1/embeddings" else (False,):
                    fields = body | ({"stream": True} if stream else {})
                    responses = [await client.post(path, json=fields) for client in clients]
                    assert [each.status_code for each in responses] == [200, 200], (name, responses[1].text)
                    assert '"error":{' not in responses[1].text, name
            tokens = (await router.client.post("/tokenize", json={"prompt": ODD})).json()["tokens"]
            assert (await router.client.post("/detokenize", json={"tokens": tokens})).json()["prompt"] == ODD
            echoed = (await router.client.post("/v1/completions", json=TAKEN["prompt"][1])).json()
            assert echoed["choices"][0]["text"].startswith(ODD)
            for path, body in TAKEN.values():
                half = json.dumps(body).replace("\\u0000", "\\ud800")
                if "\\ud800" not in half:
                    continue
                for client in clients:
                    response = await client.post(path, content=half, headers={"content-type": "application/json"})
                    assert response.status_code == 400, path
                    message = response.json()["error"]["message"]
                    assert "surrogate" in message or "not valid JSON" in message, message
            unknown = {"model": "x\r\ninjected: \x1b[31m", "messages": CONVERSATION}
            assert (await router.client.post("/v1/chat/completions", json=unknown)).status_code == 404
        lines = log.read_text().splitlines()
        assert all(json.loads(line)["status"] for line in lines)
        written = server.output + caplog.text
        assert not any(character in written for character in "\0\x1b"), "nothing that is sent reaches a terminal"
        assert "injected" not in server.output
