"""The events of a streamed response, numbered, each with its name on a line of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import ApiError
from blade_llm.api.generation.generate import encode, observe_end
from blade_llm.api.generation.result import ChoiceUpdate, GenerationResult
from blade_llm.api.responses.envelope import Envelope
from blade_llm.api.responses.output import Output
from blade_llm.engine.client import Outputs


class ResponseEvents:
    """Implements :class:`blade_llm.api.generation.sse.Events`. ``ended`` takes the final response."""

    def __init__(
        self,
        context: ServerContext,
        result: GenerationResult,
        envelope: Envelope,
        output: Output,
        ended: Callable[[dict[str, Any]], None],
    ) -> None:
        self._context = context
        self._result = result
        self._envelope = envelope
        self._output = output
        self._ended = ended
        self._number = 0

    @property
    def finished(self) -> bool:
        return self._result.finished

    def add(self, outputs: Outputs) -> bytes:
        return b"".join([self._piece(update) for update in self._result.add(outputs)])

    def end(self) -> bytes:
        body = self._envelope.ended(self._output, self._result)
        self._ended(body)
        return self._event({"type": f"response.{body['status']}", "response": body})

    def failed(self, error: ApiError) -> bytes:
        begun = b"" if self._number else self._begun()  # clients expect that of every response
        body = self._envelope.failed(self._output, error)
        return begun + self._event({"type": "response.failed", "response": body})

    def close(self) -> None:
        observe_end(self._context, self._result)

    def _piece(self, update: ChoiceUpdate) -> bytes:
        data = b"" if self._number else self._begun()
        for event in self._output.add(update):
            data += self._event(event)
        return data

    def _begun(self) -> bytes:
        body = self._envelope.begun()
        created = self._event({"type": "response.created", "response": body})
        return created + self._event({"type": "response.in_progress", "response": body})

    def _event(self, event: dict[str, Any]) -> bytes:
        event["sequence_number"] = self._number
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(event))
