"""What a trace says of a request that generates text: OpenTelemetry's GenAI conventions, and where its time went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from blade_llm.api.generation.prompt import Prompt
from blade_llm.api.generation.requests import GenerationFields
from blade_llm.api.generation.result import Choice, GenerationResult
from blade_llm.api.telemetry.tracing import RequestTrace
from blade_telemetry import names
from blade_telemetry.spans import Value

MAX_PHASES: Final = 32
"""Prompts and choices of a request whose phases are spans."""


def note_request(
    trace: RequestTrace, fields: GenerationFields, model: str, adapter: str, prompts: Sequence[Prompt]
) -> None:
    """Note what a request asks for."""
    trace.attributes |= {
        names.PROVIDER: names.PROVIDER_NAME,
        names.REQUEST_MODEL: fields.model or model,
        names.RESPONSE_MODEL: model,
        names.REQUEST_STREAM: fields.stream,
    }
    optional = {
        names.REQUEST_CHOICES: fields.n if fields.n > 1 else None,
        names.REQUEST_MAX_TOKENS: fields.max_tokens,
        names.REQUEST_TEMPERATURE: fields.temperature,
        names.REQUEST_TOP_P: fields.top_p,
        names.ADAPTER: adapter or None,
    }
    trace.attributes |= {name: value for name, value in optional.items() if value is not None}
    for prompt in prompts:
        if prompt.parsing is not None:
            prompt.parsing.called.note = lambda name: trace.event("tool_call", **{names.TOOL_NAME: name})


def note_result(trace: RequestTrace, result: GenerationResult) -> None:
    """Note what came of it, however it ended."""
    choices = result.choices
    trace.attributes |= {
        names.INPUT_TOKENS: result.prompt_tokens,
        names.OUTPUT_TOKENS: result.completion_tokens,
        names.CACHED_TOKENS: result.cached_tokens,
        names.FINISH_REASONS: [choice.finish_reason or "abort" for choice in choices],
    }
    begun = [choice.first_token_at for choice in choices if choice.first_token_at is not None]
    if begun:
        trace.attributes[names.FIRST_CHUNK] = min(begun) - result.started
    if result.draft_tokens:
        trace.attributes["blade.accepted_draft_tokens"] = result.accepted_tokens
    if replayed := sum(choice.num_replayed for choice in choices):
        trace.attributes["blade.resumed_tokens"] = replayed
        trace.events.append(("resumed", result.started, {"blade.resumed_tokens": replayed}))
    for index, choice in enumerate(choices[:MAX_PHASES]):
        details: dict[str, Value] = {"blade.choice": index} if len(choices) > 1 else {}
        _note_phases(trace, result, choice, details)


def _note_phases(trace: RequestTrace, result: GenerationResult, choice: Choice, details: dict[str, Value]) -> None:
    started, first = result.started, choice.first_token_at
    begin = started  # of the prefill; the engine counts from when it got the request, which may be a little earlier
    if choice.queue_seconds is not None:
        begin += choice.queue_seconds
        begin = begin if first is None else min(begin, first)
        trace.phases.append(("queue", started, begin, details))
        if choice.adapter_seconds:
            trace.phases.append(("load adapter", started, started + choice.adapter_seconds, details))
    if first is not None:
        cached = {names.CACHED_TOKENS: result.cached_tokens}
        trace.phases.append(("prefill", begin, first, {**details, names.INPUT_TOKENS: choice.num_prompt, **cached}))
        tokens = {names.OUTPUT_TOKENS: choice.num_tokens - choice.num_replayed}
        trace.phases.append(("decode", first, choice.last_token_at, {**details, **tokens}))
    for after in choice.preempted_after:
        trace.events.append(("preempted", started + after, dict(details)))
