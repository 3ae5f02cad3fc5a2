"""What the payload log says of a request that generates text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from blade_llm.api.generation.prompt import Prompt
from blade_llm.api.generation.requests import GenerationFields
from blade_llm.api.generation.result import GenerationResult
from blade_llm.api.telemetry.payload_log import PayloadLog
from blade_telemetry.logs import request_fields


def log_payload(
    payloads: PayloadLog,
    request: Request,
    fields: GenerationFields,
    model: str,
    prompts: Sequence[Prompt],
    result: GenerationResult,
) -> None:
    """Keep the texts of ``result``, and log them with the prompts when it has ended."""
    texts = result.texts = [list[str]() for _ in result.choices]
    trace_id = (request_fields.get() or {}).get("trace_id", "")

    def end() -> None:
        record: dict[str, Any] = {
            "request_id": request.state.request_id,
            "trace_id": trace_id,
            "path": request.url.path,
            "model": model,
            "finish_reasons": [choice.finish_reason or "abort" for choice in result.choices],
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": result.completion_tokens,
        }
        if images := sum(len(prompt.images) for prompt in prompts):
            record["images"] = images
        payloads.put(record, _prompts(fields, prompts), ["".join(pieces) for pieces in texts])

    result.at_end = end


def _prompts(fields: GenerationFields, prompts: Sequence[Prompt]) -> list[str]:
    """The prompts as texts: conversations as the template wrote them; of token ids only how many there are."""
    given = getattr(fields, "prompt", None)
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and all(isinstance(each, str) for each in given):
        return list(given)
    return [prompt.text or f"({len(prompt.token_ids)} token ids)" for prompt in prompts]
