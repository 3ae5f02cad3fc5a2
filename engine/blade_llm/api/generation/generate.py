"""What both completion routes share: submit to the engine, and respond whole or as a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import ApiError
from blade_llm.api.generation.kv_blocks import remember_prompt
from blade_llm.api.generation.logged import log_payload
from blade_llm.api.generation.prompt import Prompt
from blade_llm.api.generation.request_scope import forget_parts
from blade_llm.api.generation.requests import GenerationFields, StreamOptions
from blade_llm.api.generation.result import (
    Choice,
    ChoiceUpdate,
    GenerationResult,
    PromptLogprobs,
    PromptOnlyChoice,
    best_choices,
    merge,
)
from blade_llm.api.generation.resumable import Resumable, streamed
from blade_llm.api.generation.search import Search
from blade_llm.api.generation.sse import DONE, Events, run_unary, sse_event
from blade_llm.api.generation.traced import note_request, note_result
from blade_llm.api.telemetry.tracing import trace_of
from blade_llm.engine.client import Outputs
from blade_llm.engine.messages import GenerateRequest
from blade_llm.engine.version import package_version

encode = msgspec.json.encode
_FINGERPRINT: Final = f"bladellm-{package_version()}"

_EVENT_END: Final = b"}\n\n"
"""JSON has no raw line breaks: these end events and nothing else."""
_MANY_LOGPROBS: Final = 1_000
"""Tokens with log-probabilities from which writing them would hold up other requests' tokens."""


class ResponseSerializer(Protocol):
    """Writes the responses of one route."""

    def head(self) -> dict[str, Any]:
        """``id``, ``created``, ``model``: what every object begins with."""

    @property
    def prompt_logprobs(self) -> dict[int, PromptLogprobs]:
        """Prompt log-probabilities of the engine, by number of the prompt, before any of its choices is written."""

    def choice(self, update: ChoiceUpdate) -> dict[str, Any]:
        """One finished element of ``choices``."""

    def object_name(self) -> str:
        """``object`` of a whole response."""

    def first_chunk(self, index: int) -> bytes:
        """A chunk sent before a choice's first text; ``b""`` for none."""

    @property
    def opens_choices(self) -> bool:
        """The first event of each choice brings none of its tokens."""

    def chunk(self, update: ChoiceUpdate) -> bytes:
        """One streamed event."""

    def extra_fields(self) -> dict[str, Any]:
        """Fields of a whole response beside ``choices`` and ``usage``."""

    def usage_chunk(self, usage: dict[str, object]) -> bytes:
        """The event without choices that ends a stream with usage."""


async def respond(
    context: ServerContext,
    request: Request,
    fields: GenerationFields,
    prompts: Sequence[Prompt],
    serializer: ResponseSerializer,
    search: Search,
    param: str,
    resumable: Resumable | None = None,
) -> Response:
    """Run every prompt as ``search`` says, and respond whole or as a stream; see :func:`submit`."""
    result = submit(context, request, fields, prompts, search, param, serializer.prompt_logprobs, resumable)
    if fields.stream:
        return await streamed(stream_events(context, result, serializer, fields.stream_options), result, resumable)
    return await run_unary(result.generation, request.receive, _whole_response(context, result, serializer, search))


def submit(
    context: ServerContext,
    request: Request,
    fields: GenerationFields,
    prompts: Sequence[Prompt],
    search: Search,
    param: str,
    prompt_logprobs: dict[int, PromptLogprobs] | None = None,
    resumable: Resumable | None = None,
) -> GenerationResult:
    """Submit every prompt to the engine as ``search`` says. Choices are numbered prompt by prompt.

    Args:
        param: the field that prompts came in, for prompts the engine refuses.
        prompt_logprobs: where to put them, by number of the prompt.
        resumable: a stream that another engine may have begun.
    """
    context.require_service()
    client, name, samples = context.client, request.state.request_id, search.samples
    if len(prompts) == 1:
        (prompt,), adapter = prompts, context.adapter_digest(fields.model)
        remember_prompt(request, prompt.token_ids, fields.cache_salt, adapter, prompt.images)
    generation = client.submit(
        [
            GenerateRequest(
                request_id=client.new_id(name),
                sibling_ids=[client.new_id(name) for _ in range(1, samples)],
                prompt_token_ids=prompt.token_ids,
                sampling=prompt.sampling,
                output_token_ids=[] if resumable is None else resumable.output_token_ids,
                cache_salt=fields.cache_salt,
                priority=fields.priority,
                adapter=context.adapter_of(fields.model),
                adapter_digest="" if resumable is None else resumable.adapter_digest,
                images=prompt.images,
                pixels=[*prompt.pixels],
            )
            for prompt in prompts
        ]
    )
    for prompt in prompts:
        prompt.pixels.clear()  # a response of minutes would hold them
    forget_parts()
    result = GenerationResult(
        generation,
        [
            (PromptOnlyChoice if prompt.only else Choice)(
                number * samples + sample,
                context.model.tokenizer,
                prompt.token_ids,
                prompt.sampling,
                param,
                prompt.parsing,
                prompt.field_names,
                with_token_ids=fields.return_token_ids,
            )
            for number, prompt in enumerate(prompts)
            for sample in range(samples)
        ],
        prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
        samples=samples,
        prompt_logprobs={} if prompt_logprobs is None else prompt_logprobs,
    )
    if (trace := trace_of(request)) is not None:
        note_request(trace, fields, context.resolve_model(fields.model), context.adapter_of(fields.model), prompts)
        trace.at_end.append(lambda: note_result(trace, result))
    if context.payloads is not None and context.payloads.wants():
        log_payload(context.payloads, request, fields, context.resolve_model(fields.model), prompts, result)
    return result


def observe_end(context: ServerContext, result: GenerationResult) -> None:
    """A request has ended, however it did: measure it, and log it where that is wanted."""
    context.metrics.observe(result)
    if result.at_end is not None:
        result.at_end()
        if context.payloads is not None:
            context.metrics.set_dropped_payloads(context.payloads.dropped)


async def take_all(context: ServerContext, result: GenerationResult, take: Callable[[ChoiceUpdate], object]) -> None:
    """Hand every update to ``take`` until all choices have ended, and measure the request, however it ends."""
    try:
        while not result.finished:
            for update in await result.next():
                take(update)
    finally:
        observe_end(context, result)


async def _whole_response(
    context: ServerContext, result: GenerationResult, serializer: ResponseSerializer, search: Search
) -> Response:
    updates: list[list[ChoiceUpdate]] = [[] for _ in result.choices]
    await take_all(context, result, lambda update: updates[update.index].append(update))
    choices = [merge(of_choice) for of_choice in updates]
    if search.ranked:
        starts = range(0, len(choices), search.samples)
        choices = [
            update for start in starts for update in best_choices(choices[start : start + search.samples], search.n)
        ]
        for index, update in enumerate(choices):
            update.index = index

    def write() -> bytes:
        return encode(
            {
                **serializer.head(),
                "object": serializer.object_name(),
                "choices": [serializer.choice(update) for update in choices],
                "usage": result.usage(),
                **serializer.extra_fields(),
            }
        )

    many = sum(map(len, result.prompt_logprobs.values())) * search.n + sum(len(update.entries) for update in choices)
    body = await asyncio.to_thread(write) if many > _MANY_LOGPROBS else write()
    return Response(body, media_type="application/json")


def stream_events(
    context: ServerContext,
    result: GenerationResult,
    serializer: ResponseSerializer,
    options: StreamOptions | None = None,
) -> Events:
    """The events of one streamed request; they are measured when it is over."""
    options = options or StreamOptions()
    if options.include_usage:
        return _WithUsage(context, result, serializer, continuous=options.continuous_usage_stats)
    return _StreamEvents(context, result, serializer)


class _StreamEvents:
    def __init__(self, context: ServerContext, result: GenerationResult, serializer: ResponseSerializer) -> None:
        self._context = context
        self._result = result
        self._serializer = serializer
        self._begun = [False] * len(result.choices)

    @property
    def finished(self) -> bool:
        return self._result.finished

    def add(self, outputs: Outputs) -> bytes:
        data = b""
        for update in self._result.add(outputs):
            piece = b""
            if not self._begun[update.index]:
                self._begun[update.index] = True
                piece = self._serializer.first_chunk(update.index)
            data += self._with_usage(piece + self._serializer.chunk(update), update.index)
        return data

    def _with_usage(self, data: bytes, index: int) -> bytes:
        """The events ``data`` of choice ``index``, with usage if that is wanted."""
        return data

    def end(self) -> bytes:
        return DONE

    def failed(self, error: ApiError) -> bytes:
        return sse_event(error.body())

    def close(self) -> None:
        observe_end(self._context, self._result)


class _WithUsage(_StreamEvents):
    """A stream with usage in every chunk: null, or ``continuous``: so far. The last chunk has nothing else."""

    def __init__(
        self, context: ServerContext, result: GenerationResult, serializer: ResponseSerializer, *, continuous: bool
    ) -> None:
        super().__init__(context, result, serializer)
        self._continuous = continuous
        self._opened = [not serializer.opens_choices] * len(result.choices)

    def _with_usage(self, data: bytes, index: int) -> bytes:
        if not data:
            return data
        usage = encode(self._result.usage()) if self._continuous else b"null"
        opening = b""
        if self._continuous and not self._opened[index]:
            first, end, data = data.partition(_EVENT_END)
            opening = b'%b,"usage":%b%b' % (first, encode(self._result.usage(generated=False)), end)
        self._opened[index] = True
        return opening + data.replace(_EVENT_END, b',"usage":%b%b' % (usage, _EVENT_END))

    def end(self) -> bytes:
        return self._serializer.usage_chunk(self._result.usage()) + DONE


def response_head(response_id: str, model: str, created: int | None = None) -> dict[str, Any]:
    """What every object of a response begins with. ``created``: seconds since 1970, now when left out."""
    created = int(time.time()) if created is None else created
    return {"id": response_id, "created": created, "model": model, "system_fingerprint": _FINGERPRINT}


def event(value: dict[str, Any]) -> bytes:
    """``value`` as one server-sent event."""
    return sse_event(encode(value))
