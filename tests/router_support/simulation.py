"""Requests for tests of policies."""

import msgspec

from blade_router.request.parse import parse_fields
from blade_router.request.request import ClientRequest

BLOCK = 256
GROUP_BLOCKS = 17


def chat_request(text: str, **fields: object) -> ClientRequest:
    """A parsed chat request with one message."""
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": text}], **fields})
    return ClientRequest("POST", "/v1/chat/completions", parse_fields(body), body, b"id")


def group_text(group: int, blocks: int = GROUP_BLOCKS) -> str:
    """A text of so many blocks that shares none with another group's."""
    word = f"group {group:06d} "
    return (word * (blocks * BLOCK // len(word) + 1))[: blocks * BLOCK]
