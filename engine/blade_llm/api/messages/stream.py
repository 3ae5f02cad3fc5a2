"""The events of a streamed message, each with its name on a line of its own."""

from __future__ import annotations

from typing import Any

from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import ApiError
from blade_llm.api.generation.generate import encode, observe_end
from blade_llm.api.generation.result import ChoiceUpdate, GenerationResult
from blade_llm.api.messages.output import Envelope, Output, usage_of
from blade_llm.engine.client import Outputs
from blade_protocol import anthropic


class MessageEvents:
    """Implements :class:`blade_llm.api.generation.sse.Events`."""

    def __init__(
        self, context: ServerContext, result: GenerationResult, envelope: Envelope, output: Output, request_id: str
    ) -> None:
        self._context = context
        self._result = result
        self._envelope = envelope
        self._output = output
        self._request_id = request_id
        self._begun = False

    @property
    def finished(self) -> bool:
        return self._result.finished

    def add(self, outputs: Outputs) -> bytes:
        return b"".join([self._piece(update) for update in self._result.add(outputs)])

    def end(self) -> bytes:
        delta = {"stop_reason": self._output.stop_reason, "stop_sequence": self._output.stop_sequence}
        usage = {name: value for name, value in usage_of(self._result).items() if name != "service_tier"}
        return _event({"type": "message_delta", "delta": delta, "usage": usage}) + _event({"type": "message_stop"})

    def failed(self, error: ApiError) -> bytes:
        detail = error.detail
        return anthropic.error_event(anthropic.error_body(error.status, detail.message, detail.code, self._request_id))

    def close(self) -> None:
        observe_end(self._context, self._result)

    def _piece(self, update: ChoiceUpdate) -> bytes:
        data = b""
        if not self._begun:
            self._begun = True
            data = _event({"type": "message_start", "message": self._envelope.begun(self._result)})
        return data + b"".join([_event(event) for event in self._output.add(update)])


def _event(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(event))
