"""Output items: the JSON of each kind when it begins, grows and ends, and its events."""

from __future__ import annotations

from typing import Any, Literal, Protocol

Event = dict[str, Any]
"""One event of a stream, without its ``sequence_number``."""
Status = Literal["in_progress", "completed", "incomplete"]
Logprobs = list[dict[str, Any]]


class Item(Protocol):
    """One element of ``output``."""

    def body(self, status: Status) -> dict[str, Any]:
        """The element as it is now."""

    def opened(self) -> list[Event]:
        """What follows the event that the item was added."""

    def grow(self, text: str, logprobs: Logprobs) -> Event:
        """Append ``text``."""

    def closed(self) -> list[Event]:
        """What comes before the event that the item is done."""


class Message:
    """Text for the user."""

    def __init__(self, number: str, index: int) -> None:
        self._id = f"msg_{number}"
        self._where = {"item_id": self._id, "output_index": index, "content_index": 0}
        self._texts: list[str] = []
        self._logprobs: Logprobs = []

    def body(self, status: Status) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self._part()]
        return {"id": self._id, "type": "message", "status": status, "role": "assistant", "content": content}

    def opened(self) -> list[Event]:
        return [{"type": "response.content_part.added", **self._where, "part": self._part()}]

    def grow(self, text: str, logprobs: Logprobs) -> Event:
        self._texts.append(text)
        self._logprobs += logprobs
        return {"type": "response.output_text.delta", **self._where, "delta": text, "logprobs": _brief(logprobs)}

    def closed(self) -> list[Event]:
        part = self._part()
        done = {"text": part["text"], "logprobs": _brief(self._logprobs)}
        return [
            {"type": "response.output_text.done", **self._where, **done},
            {"type": "response.content_part.done", **self._where, "part": part},
        ]

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": "".join(self._texts), "annotations": [], "logprobs": [*self._logprobs]}


class ReasoningItem:
    """The reasoning of the model, verbatim; there is no summary."""

    def __init__(self, number: str, index: int) -> None:
        self._id = f"rs_{number}"
        self._where = {"item_id": self._id, "output_index": index, "content_index": 0}
        self._texts: list[str] = []

    def body(self, status: Status) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self._part()]
        return {
            "id": self._id, "type": "reasoning", "status": status, "summary": [], "content": content,
            "encrypted_content": None,
        }  # fmt: skip

    def opened(self) -> list[Event]:
        return [{"type": "response.content_part.added", **self._where, "part": self._part()}]

    def grow(self, text: str, logprobs: Logprobs) -> Event:
        self._texts.append(text)
        return {"type": "response.reasoning_text.delta", **self._where, "delta": text}

    def closed(self) -> list[Event]:
        part = self._part()
        return [
            {"type": "response.reasoning_text.done", **self._where, "text": part["text"]},
            {"type": "response.content_part.done", **self._where, "part": part},
        ]

    def _part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": "".join(self._texts)}


class FunctionCall:
    """A function call for the client to execute. ``namespace``: that of the function, empty for none."""

    def __init__(self, number: str, index: int, call_id: str, name: str, namespace: str = "") -> None:
        self._id = f"fc_{number}"
        self._where = {"item_id": self._id, "output_index": index}
        self._call_id = call_id
        self._name = name
        self._namespace = {"namespace": namespace} if namespace else {}
        self._arguments: list[str] = []

    def body(self, status: Status) -> dict[str, Any]:
        return {
            "id": self._id, "type": "function_call", "status": status, "call_id": self._call_id, "name": self._name,
            "arguments": "".join(self._arguments), **self._namespace,
        }  # fmt: skip

    def opened(self) -> list[Event]:
        return []

    def grow(self, text: str, logprobs: Logprobs) -> Event:
        self._arguments.append(text)
        return {"type": "response.function_call_arguments.delta", **self._where, "delta": text}

    def closed(self) -> list[Event]:
        done = {"name": self._name, "arguments": "".join(self._arguments)}
        return [{"type": "response.function_call_arguments.done", **self._where, **done}]


class CustomToolCall:
    """A call of a freeform tool for the client to execute."""

    def __init__(self, number: str, index: int, call_id: str, name: str, namespace: str = "") -> None:
        self._id = f"ctc_{number}"
        self._where = {"item_id": self._id, "output_index": index}
        self._call = {"call_id": call_id, "name": name, **({"namespace": namespace} if namespace else {})}
        self._texts: list[str] = []

    def body(self, status: Status) -> dict[str, Any]:
        text = "".join(self._texts)
        del status  # OpenAI's has none
        return {"id": self._id, "type": "custom_tool_call", **self._call, "input": text}

    def opened(self) -> list[Event]:
        return []

    def grow(self, text: str, logprobs: Logprobs) -> Event:
        self._texts.append(text)
        return {"type": "response.custom_tool_call_input.delta", **self._where, "delta": text}

    def closed(self) -> list[Event]:
        return [{"type": "response.custom_tool_call_input.done", **self._where, "input": "".join(self._texts)}]


def _brief(logprobs: Logprobs) -> Logprobs:
    """Log-probabilities as events carry them: without the tokens' bytes."""

    def brief(entry: dict[str, Any]) -> dict[str, Any]:
        return {"token": entry["token"], "logprob": entry["logprob"]}

    return [{**brief(entry), "top_logprobs": [brief(top) for top in entry["top_logprobs"]]} for entry in logprobs]
