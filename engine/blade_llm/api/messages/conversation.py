"""Content blocks become the messages a chat template knows.

One turn of the user may hold the results of several tools and a text, which are messages of their own there; turns of
one role that follow each other are one.
"""

from __future__ import annotations

from typing import Any

from blade_llm.api.common.errors import ApiError, bad_request
from blade_protocol.anthropic import BILLING_HEADER


def messages_of(messages: list[Any], system: str | list[Any] | None) -> list[dict[str, Any]]:
    """Chat messages for a request's ``messages`` and ``system``. Raises :class:`ApiError` 400 (which block)."""
    conversation = _Conversation()
    if system is not None and any(texts := _system(system, "system")):
        conversation.messages.append({"role": "system", "content": texts})
    for index, message in enumerate(messages):
        conversation.add(message, f"messages[{index}]")
    return conversation.ended()


class _Conversation:
    """Texts stay apart until the end: to join them one by one would copy the first one each time."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        """``content`` and ``reasoning_content`` are lists of texts."""

    def add(self, message: Any, where: str) -> None:
        if not isinstance(message, dict):
            raise bad_request(f'{where} must be a message, e.g. {{"role": "user", "content": …}}', "messages")
        match message.get("role"):
            case "user":
                self._user(_blocks(message.get("content"), f"{where}.content"))
            case "assistant":
                self._assistant(_blocks(message.get("content"), f"{where}.content"))
            case "system":
                texts = _system(message.get("content"), f"{where}.content")
                self.messages.append({"role": "system", "content": texts})
            case _:
                raise bad_request(f"{where}.role must be user or assistant", "messages")

    def ended(self) -> list[dict[str, Any]]:
        """All messages. An assistant's at the end is one to go on with, unless it is empty."""
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == "assistant":
            if last.get("tool_calls"):
                raise bad_request(
                    "messages end with a tool_use; send its tool_result in a message after it", "messages"
                )
            if not any(last["content"]):
                self.messages.pop()
        if not self.messages:
            raise bad_request("messages hold no content", "messages")
        for message in self.messages:
            message["content"] = _joined(message["content"])
            if "reasoning_content" in message:
                message["reasoning_content"] = _joined(message["reasoning_content"])
        return self.messages

    def _user(self, blocks: list[tuple[dict[str, Any], str]]) -> None:
        """Results of tools come first: templates want them right behind the calls."""
        texts: list[str] = []
        for block, where in blocks:
            match block.get("type"):
                case "text":
                    texts.append(_string(block, "text", where))
                case "tool_result":
                    self.messages.append(_result(block, where))
                case kind:
                    raise _unsupported(kind, where, "text and tool_result")
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == "user":
            last["content"] += texts
        elif any(texts) or last.get("role") != "tool":
            self.messages.append({"role": "user", "content": texts})

    def _assistant(self, blocks: list[tuple[dict[str, Any], str]]) -> None:
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "assistant" or last.get("tool_calls"):
            last = {"role": "assistant", "content": []}
            self.messages.append(last)
        for block, where in blocks:
            match block.get("type"):
                case "text":
                    last["content"].append(_string(block, "text", where))
                case "thinking":
                    if thought := _string(block, "thinking", where):
                        last.setdefault("reasoning_content", []).append(thought)
                case "redacted_thinking":
                    pass  # encrypted: nobody here can read it
                case "tool_use":
                    last.setdefault("tool_calls", []).append(_call(block, where))
                case kind:
                    raise _unsupported(kind, where, "text, thinking and tool_use")


def _system(content: Any, where: str) -> list[str]:
    texts: list[str] = []
    for block, place in _blocks(content, where):
        if block.get("type") != "text":
            raise _unsupported(block.get("type"), place, "text")
        text = _string(block, "text", place)
        if not text.startswith(BILLING_HEADER):
            texts.append(text)
    return texts


def _result(block: dict[str, Any], where: str) -> dict[str, Any]:
    """A message of role tool. Templates know of no failures, so the text says it."""
    texts: list[str] = []
    content = block.get("content")
    for part, place in [] if content is None else _blocks(content, f"{where}.content"):
        if part.get("type") != "text":
            raise _unsupported(part.get("type"), place, "text")
        texts.append(_string(part, "text", place))
    if block.get("is_error"):
        texts = [": ".join(filter(None, ("Error", _joined(texts))))]
    return {"role": "tool", "tool_call_id": _string(block, "tool_use_id", where), "content": texts}


def _call(block: dict[str, Any], where: str) -> dict[str, Any]:
    arguments = block.get("input", {})
    if not isinstance(arguments, dict):
        raise bad_request(f"{where}.input must be an object", "messages")
    function = {"name": _string(block, "name", where), "arguments": arguments}
    return {"id": _string(block, "id", where), "type": "function", "function": function}


def _blocks(content: Any, where: str) -> list[tuple[dict[str, Any], str]]:
    """The blocks of a content, and where each is. Raises :class:`ApiError` 400."""
    if isinstance(content, str):
        return [({"type": "text", "text": content}, where)]
    if not isinstance(content, list):
        raise bad_request(f"{where} must be a string or a list of blocks", _field(where))
    for index, block in enumerate(content):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise bad_request(f'{where}[{index}] must be a block, e.g. {{"type": "text", "text": …}}', _field(where))
    return [(block, f"{where}[{index}]") for index, block in enumerate(content)]


def _joined(texts: list[str]) -> str:
    """As a chat joins its parts; agents send empty ones."""
    return "\n".join(filter(None, texts))


def _string(block: dict[str, Any], name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise bad_request(f"{where}.{name} must be a string", _field(where))
    return value


def _unsupported(kind: Any, where: str, known: str) -> ApiError:
    return bad_request(
        f"{where}: blocks of type {kind!r} are not supported here; send {known}", _field(where), "unsupported"
    )


def _field(where: str) -> str:
    return "system" if where.startswith("system") else "messages"
