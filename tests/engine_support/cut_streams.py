"""A stream with token ids, cut after any group as a dying engine would, and gone on with by another replica."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import httpx
from engine_support.server_process import ServerProcess

from blade_protocol import headers, paths

_GROUP = re.compile(rb"(.*?\n\n): ([0-9,]*)\n\n", re.DOTALL)


@dataclass
class Cut:
    """A whole stream, group by group."""

    path: str
    body: dict[str, Any]
    headers: httpx.Headers
    groups: list[tuple[bytes, list[int]]]

    @property
    def data(self) -> bytes:
        """What a client would have read."""
        return b"".join(data for data, _ in self.groups)

    def resume_body(self, groups: int, **changed: Any) -> dict[str, Any]:
        return {
            "path": self.path,
            "request": self.body,
            "request_id": self.headers[headers.REQUEST_ID],
            "created": int(self.headers[headers.CREATED]),
            "seed": int(self.headers[headers.SEED]),
            "prompt_digest": self.headers[headers.PROMPT_DIGEST],
            "token_ids": [ids for _, ids in self.groups[:groups]],
            **changed,
        }

    def resumed(self, server: ServerProcess, groups: int, **changed: Any) -> bytes:
        """What a client reads that got so many groups before the engine died."""
        response = post_resume(server, self.resume_body(groups, **changed))
        assert response.status_code == 200, response.text
        rest = groups_of(response.content)
        return b"".join(data for data, _ in self.groups[:groups]) + b"".join(data for data, _ in rest)


def cut(server: ServerProcess, path: str, router_seed: int | None = None, **body: Any) -> Cut:
    """Request a stream with its token ids; once more where all came in one group, as when its process was late."""
    given = {headers.STREAM_IDS: "1"} | ({} if router_seed is None else {headers.SEED: str(router_seed)})
    for _ in range(8):
        response = httpx.post(server.url + path, json={**body, "stream": True}, headers=given, timeout=60)
        assert response.status_code == 200, response.text
        groups = groups_of(response.content)
        if len(groups) > 1:
            break
    return Cut(path, {**body, "stream": True}, response.headers, groups)


def post_resume(server: ServerProcess, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.internal_url + paths.INTERNAL_RESUME, json=body, timeout=60)


def groups_of(content: bytes) -> list[tuple[bytes, list[int]]]:
    """Events and their token ids; every byte belongs to a group."""
    found = _GROUP.findall(content)
    assert b"".join(b"%b: %b\n\n" % group for group in found) == content
    return [(data, [int(token) for token in ids.split(b",") if token]) for data, ids in found]


def merged_stream(data: bytes) -> Any:
    """What a client makes of a chat's or a completion's stream, however its text was cut into events."""
    events = [line[6:] for line in data.decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    story: list[Any] = [sorted({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks})]
    for chunk in chunks:
        for choice in chunk["choices"]:
            story += _parts(choice)
        if chunk.get("usage") and not chunk["choices"]:
            chunk["usage"].pop("prompt_tokens_details")  # every replica has a prefix cache of its own
            story.append(("usage", chunk["usage"]))
    return _merged(story)


def _parts(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    parts: list[tuple[str, Any]] = []
    delta = choice.get("delta", {"text": choice.get("text")})
    for name, value in delta.items():
        for call in value if name == "tool_calls" else ():
            function = dict(call["function"])
            text = function.pop("arguments", "")
            if "id" in call:
                parts.append(("call", {**call, "function": function}))
            parts.append((f"arguments {call['index']}", text))
        if name == "role":
            parts.append(("role", value))
        elif name != "tool_calls" and value:
            parts.append((name, value))
    if choice["logprobs"]:
        parts.append(("logprobs", choice["logprobs"].get("content", choice["logprobs"].get("tokens"))))
    if choice["finish_reason"]:
        parts.append(("finish", choice["finish_reason"]))
    return parts


def _merged(story: list[Any]) -> list[Any]:
    """Neighbours of one name joined, and what stands beside the text put behind it."""
    texts: dict[str, Any] = {}
    rest: list[Any] = []
    for part in story:
        if isinstance(part, tuple) and isinstance(part[1], str | list) and part[0] not in ("role", "finish"):
            texts[part[0]] = texts[part[0]] + part[1] if part[0] in texts else part[1]
        else:
            rest.append(part)
    return [*rest, *texts.items()]


def responded(data: bytes) -> tuple[list[str], dict[str, Any]]:
    """The kinds of a response's events without repetitions, and the last one. Checks their numbers."""
    lines = [line[6:] for line in data.decode().splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    last = events[-1]["response"]
    last["usage"].pop("input_tokens_details")
    assert "".join(part["text"] for item in last["output"] for part in item.get("content", [])).endswith(text)
    assert {event["response"]["id"] for event in events if "response" in event} == {last["id"]}
    return [kind for index, kind in enumerate(kinds) if kinds[index - 1 : index] != [kind]], {**last, "completed_at": 0}
