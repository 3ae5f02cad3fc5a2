"""Input items become the messages a chat template knows.

What the model said in one turn (reasoning, text, calls) is one assistant message there, but several items here. A
chat's message of role tool has no images: those of outputs follow in a message of the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from blade_llm.api.common.errors import ApiError, bad_request
from blade_llm.api.conversation import ROLES
from blade_llm.api.responses.functions import qualified
from blade_llm.api.responses.images import image_of
from blade_llm.api.translated_messages import Part, PlacedImage, TranslatedMessages

_ROLES: Final = {role: known for role, known in ROLES.items() if role != "tool"}
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
TEXT_PARTS: Final = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def messages_of(
    items: str | list[Any], instructions: str | None, earlier: Sequence[dict[str, Any]] = ()
) -> TranslatedMessages:
    """Chat messages for a request's ``input`` and ``instructions``, those of ``earlier`` items between both.

    Raises :class:`ApiError` 400 (which item).
    """
    conversation = _Conversation()
    if instructions is not None:
        conversation.messages.append({"role": "system", "content": instructions})
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not items:
        raise bad_request("input must hold at least one item", "input")
    for item in earlier:
        conversation.add(item, "previous_response_id")
    for index, item in enumerate(items):
        conversation.add(item, f"input[{index}]")
    if not conversation.messages:
        raise bad_request("input holds no text, and nothing else that a model could answer", "input")
    return conversation.ended()


class _Conversation:
    def __init__(self) -> None:
        self._translated = TranslatedMessages("input_image")
        self.messages = self._translated.messages
        self._shown: list[PlacedImage] = []
        """Images of the outputs at the end: those of calls made at once stay together."""

    def ended(self) -> TranslatedMessages:
        """All messages."""
        self._show()
        return self._translated

    def add(self, item: Any, where: str) -> None:
        if not isinstance(item, dict):
            raise bad_request(f'{where} must be an item, e.g. {{"role": "user", "content": …}}', "input")
        kind = item.get("type")
        if kind is None:
            kind = "message" if "role" in item else "item_reference" if "id" in item else None
        if kind not in _OUTPUTS:
            self._show()
        match kind:
            case "message":
                self._message(item, where)
            case "reasoning":
                said, brief = (_optional_text(item, name, where) for name in ("content", "summary"))
                if text := said or brief:
                    self._turn("reasoning_content", "content", "tool_calls")["reasoning_content"] = text
            case "function_call":
                self._turn().setdefault("tool_calls", []).append(_call(item, where))
            case "custom_tool_call":
                self._turn().setdefault("tool_calls", []).append(_custom_call(item, where))
            case "function_call_output" | "custom_tool_call_output":
                parts = _parts(item.get("output"), f"{where}.output")
                content = _joined([part for part in parts if isinstance(part, str)])
                self._shown += [part for part in parts if isinstance(part, PlacedImage)]
                self.messages.append(
                    {"role": "tool", "tool_call_id": _string(item, "call_id", where), "content": content}
                )
            case "item_reference":
                raise _missing("id", where)  # those that have one were replaced by their items
            case str():
                raise bad_request(f"{where}: items of type {kind!r} are not supported", "input", "unsupported")
            case _:
                raise bad_request(f"{where} needs a 'type', or 'role' and 'content'", "input")

    def _message(self, item: dict[str, Any], where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise bad_request(f"{where}.role must be user, assistant, system or developer", "input")
        content, place = item.get("content"), f"{where}.content"
        if role == "user":
            self._user(_parts(content, place))
            return
        text = _text(content, place, f"role {role}")
        if role == "assistant":
            self._turn("content", "tool_calls")["content"] = text
        else:
            self.messages.append({"role": _ROLES[role], "content": text})

    def _show(self) -> None:
        if self._shown:
            self._user(self._shown)
            self._shown = []

    def _user(self, parts: Sequence[Part]) -> None:
        message: dict[str, Any] = {"role": "user"}
        self._translated.set_content(message, parts, _joined)
        self.messages.append(message)

    def _turn(self, *before: str) -> dict[str, Any]:
        """The assistant message at the end, a new one unless none of ``before`` has come in it yet."""
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == "assistant" and not any(last.get(name) for name in before):
            return last
        self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


def _parts(content: Any, where: str) -> list[Part]:
    """A text, or the texts and images of a list. Raises :class:`ApiError` 400."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise bad_request(f"{where} must be a string or a list of text parts", "input")
    return [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]


def _text(content: Any, where: str, owner: str) -> str:
    """A text, or joined text parts, of an item to which images do not belong. Raises :class:`ApiError` 400."""
    texts: list[str] = []
    for part in _parts(content, where):
        if not isinstance(part, str):
            problem = f"images belong to messages of the user and to outputs of calls, not to {owner}"
            raise bad_request(f"{part.place}: {problem}", "input", "unsupported")
        texts.append(part)
    return _joined(texts)


def _joined(texts: list[str]) -> str:
    """As a chat joins its parts."""
    return "\n".join(texts)


def _optional_text(item: dict[str, Any], name: str, where: str) -> str:
    content = item.get(name)
    return "" if content is None else _text(content, f"{where}.{name}", "reasoning")


def _part(part: Any, where: str) -> Part:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in TEXT_PARTS and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if kind == "input_image":
        return image_of(part, where)
    if kind in ("input_file", "input_audio"):
        raise bad_request(f"{where}: {kind} is not supported by this model; send text", "input", "unsupported")
    raise bad_request(f'{where} must be {{"type": "input_text", "text": …}}', "input")


def _call(item: dict[str, Any], where: str) -> dict[str, Any]:
    function = {"name": _name(item, where), "arguments": _string(item, "arguments", where)}
    return {"id": _string(item, "call_id", where), "type": "function", "function": function}


def _custom_call(item: dict[str, Any], where: str) -> dict[str, Any]:
    custom = {"name": _name(item, where), "input": _string(item, "input", where)}
    return {"id": _string(item, "call_id", where), "type": "custom", "custom": custom}


def _name(item: dict[str, Any], where: str) -> str:
    """The name under which the model knows what it called."""
    name, space = _string(item, "name", where), item.get("namespace")
    return qualified(space, name) if isinstance(space, str) and space else name


def _string(item: dict[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _missing(name, where)
    return value


def _missing(name: str, where: str) -> ApiError:
    return bad_request(f"{where}.{name} must be a string", "input")
