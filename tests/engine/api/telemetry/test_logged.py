"""What the payload log has of a request."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from starlette.requests import Request

from blade_llm.api.generation.logged import log_payload
from blade_llm.api.generation.requests import GenerationFields
from blade_llm.api.generation.result import GenerationResult
from blade_llm.api.telemetry.payload_log import PayloadLog
from blade_telemetry.logs import request_fields


class Kept:
    """A payload log that keeps what it gets."""

    def __init__(self) -> None:
        self.records: list[tuple[dict[str, Any], Sequence[str], Sequence[str]]] = []

    def put(self, record: dict[str, Any], prompts: Sequence[str], outputs: Sequence[str]) -> None:
        self.records.append((record, prompts, outputs))


def test_a_record_has_the_texts_and_the_ids_of_the_log() -> None:
    choices = [SimpleNamespace(finish_reason="stop"), SimpleNamespace(finish_reason=None)]
    result = SimpleNamespace(choices=choices, prompt_tokens=3, completion_tokens=2, texts=None, at_end=None)
    request = Request({"type": "http", "path": "/v1/completions", "headers": [], "state": {"request_id": "r"}})
    fields = SimpleNamespace(prompt="hello")
    kept = Kept()
    token = request_fields.set({"request_id": "r", "trace_id": "ab"})  # of a trace that begins in the engine
    try:
        log_payload(
            cast(PayloadLog, kept),
            request,
            cast(GenerationFields, fields),
            "m",
            [],
            cast(GenerationResult, result),
        )
    finally:
        request_fields.reset(token)
    for index, piece in ((0, "wor"), (1, "x"), (0, "ld")):
        result.texts[index].append(piece)
    result.at_end()
    ((record, prompts, outputs),) = kept.records
    assert (record["request_id"], record["trace_id"], record["path"]) == ("r", "ab", "/v1/completions")
    assert (list(prompts), list(outputs)) == (["hello"], ["world", "x"])
    assert record["finish_reasons"] == ["stop", "abort"]
