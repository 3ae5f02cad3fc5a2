"""Content blocks become the messages a chat template knows.

One turn of the user may hold the results of several tools, texts and images, which are messages of their own there;
turns of one role that follow each other are one.
"""

from __future__ import annotations

from typing import Any

from blade_llm.api.common.errors import ApiError, bad_request
from blade_llm.api.messages.images import image_of
from blade_llm.api.translated_messages import Part, PlacedImage, TranslatedMessages
from blade_protocol.anthropic import BILLING_HEADER


def messages_of(messages: list[Any], system: str | list[Any] | None) -> TranslatedMessages:
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
        """``content`` is a list of texts and images, ``reasoning_content`` one of texts."""

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

    def ended(self) -> TranslatedMessages:
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
        found = TranslatedMessages("image")
        for message in self.messages:
            found.set_content(message, message["content"], _joined)
            if "reasoning_content" in message:
                message["reasoning_content"] = _joined(message["reasoning_content"])
            found.messages.append(message)
        return found

    def _user(self, blocks: list[tuple[dict[str, Any], str]]) -> None:
        """Results of tools come first: templates want them right behind the calls. A chat's message of role tool has
        no images, so those of results stand before what the user says, as with vLLM."""
        said: list[Part] = []
        shown: list[Part] = []
        for block, where in blocks:
            match block.get("type"):
                case "text":
                    said.append(_string(block, "text", where))
                case "image":
                    said.append(image_of(block, where))
                case "tool_result":
                    result, images = _result(block, where)
                    self.messages.append(result)
                    shown += images
                case kind:
                    raise _unsupported(kind, where, "text, image and tool_result")
        parts = shown + said
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == "user":
            last["content"] += parts
        elif any(parts) or last.get("role") != "tool":
            self.messages.append({"role": "user", "content": parts})

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


def _result(block: dict[str, Any], where: str) -> tuple[dict[str, Any], list[PlacedImage]]:
    """A message of role tool, and the images of the result. Templates know of no failures, so the text says it."""
    texts: list[str] = []
    images: list[PlacedImage] = []
    content = block.get("content")
    for part, place in [] if content is None else _blocks(content, f"{where}.content"):
        match part.get("type"):
            case "text":
                texts.append(_string(part, "text", place))
            case "image":
                images.append(image_of(part, place))
            case kind:
                raise _unsupported(kind, place, "text and image")
    if block.get("is_error"):
        texts = [": ".join(filter(None, ("Error", _joined(texts))))]
    return {"role": "tool", "tool_call_id": _string(block, "tool_use_id", where), "content": texts}, images


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
