"""What both completion routes share: submit to the engine, and answer whole or as a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.answers import Answers, Choice, Piece, PromptLogprobs, PromptOnly, best, join
from blade_llm.api.context import ServerContext
from blade_llm.api.errors import ApiError
from blade_llm.api.kv_blocks import note_prompt
from blade_llm.api.requests import GenerationFields, StreamOptions
from blade_llm.api.resumable import Resumable, streamed
from blade_llm.api.search import Search
from blade_llm.api.sse import DONE, Events, run_unary, sse_event
from blade_llm.api.version import package_version
from blade_llm.engine.client import Outputs
from blade_llm.engine.messages import GenerateRequest
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.text.answer_parser import AnswerParsing

encode = msgspec.json.encode
_FINGERPRINT: Final = f"bladellm-{package_version()}"

_MANY_LOGPROBS: Final = 1_000
"""Tokens with log-probabilities from which writing them would hold up other requests' tokens."""


class Shape(Protocol):
    """How one route writes its answers."""

    def head(self) -> dict[str, Any]:
        """``id``, ``created``, ``model``: what every object begins with."""

    @property
    def prompt_logprobs(self) -> dict[int, PromptLogprobs]:
        """Where the engine's are put, by number of the prompt, before any of its choices is written."""

    def choice(self, piece: Piece) -> dict[str, Any]:
        """One finished element of ``choices``."""

    def whole(self) -> str:
        """``object`` of a whole answer."""

    def first(self, index: int) -> bytes:
        """A chunk sent before a choice's first text; ``b""`` for none."""

    def chunk(self, piece: Piece) -> bytes:
        """One streamed event."""

    def around(self) -> dict[str, Any]:
        """What a whole answer says beside ``choices`` and ``usage``, now that all has come."""

    def usage_chunk(self, usage: dict[str, object]) -> bytes:
        """The event without choices that ends a stream with usage."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt's tokens and how to go on from them."""

    token_ids: list[int]
    sampling: SamplingParams
    only: bool = False
    """Answer with the prompt itself; see :class:`PromptOnly`."""
    parsing: AnswerParsing | None = None
    """How its answers are taken apart; None: they are all content."""
    asked_by: Mapping[str, str] = field(default_factory=dict)
    """What the engine calls a thing → the request's field that asks for it, where it does not have that name."""


async def answer(
    context: ServerContext,
    request: Request,
    fields: GenerationFields,
    prompts: Sequence[Prompt],
    shape: Shape,
    search: Search,
    param: str,
    resumable: Resumable | None = None,
) -> Response:
    """Run every prompt as ``search`` says, and answer whole or as a stream; see :func:`submit`."""
    answers = submit(context, request, fields, prompts, search, param, shape.prompt_logprobs, resumable)
    if fields.stream:
        return await streamed(stream_events(context, answers, shape, fields.stream_options), answers, resumable)
    return await run_unary(answers.generation, request.receive, _whole(context, answers, shape, search))


def submit(
    context: ServerContext,
    request: Request,
    fields: GenerationFields,
    prompts: Sequence[Prompt],
    search: Search,
    param: str,
    prompt_logprobs: dict[int, PromptLogprobs] | None = None,
    resumable: Resumable | None = None,
) -> Answers:
    """Begin to run every prompt as ``search`` says. Choices are numbered prompt by prompt.

    Args:
        param: the field that prompts came in, for prompts the engine refuses.
        prompt_logprobs: where to put them, by number of the prompt.
        resumable: a stream that perhaps has begun elsewhere.
    """
    context.require_service()
    client, name, samples = context.client, request.state.request_id, search.samples
    if len(prompts) == 1:
        note_prompt(request, prompts[0].token_ids, fields.cache_salt)
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
            )
            for prompt in prompts
        ]
    )
    return Answers(
        generation,
        [
            (PromptOnly if prompt.only else Choice)(
                number * samples + sample,
                context.model.tokenizer,
                prompt.token_ids,
                prompt.sampling,
                param,
                prompt.parsing,
                prompt.asked_by,
            )
            for number, prompt in enumerate(prompts)
            for sample in range(samples)
        ],
        prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
        samples=samples,
        prompt_logprobs={} if prompt_logprobs is None else prompt_logprobs,
    )


async def _whole(context: ServerContext, answers: Answers, shape: Shape, search: Search) -> Response:
    pieces: list[list[Piece]] = [[] for _ in answers.choices]
    try:
        while not answers.finished:
            for piece in await answers.next():
                pieces[piece.index].append(piece)
    finally:
        context.metrics.observe(answers)
    choices = [join(of_choice) for of_choice in pieces]
    if search.ranked:
        starts = range(0, len(choices), search.samples)
        choices = [piece for start in starts for piece in best(choices[start : start + search.samples], search.n)]
        for index, piece in enumerate(choices):
            piece.index = index

    def write() -> bytes:
        return encode(
            {
                **shape.head(),
                "object": shape.whole(),
                "choices": [shape.choice(piece) for piece in choices],
                "usage": answers.usage(),
                **shape.around(),
            }
        )

    many = sum(map(len, answers.prompt_logprobs.values())) * search.n + sum(len(piece.entries) for piece in choices)
    body = await asyncio.to_thread(write) if many > _MANY_LOGPROBS else write()
    return Response(body, media_type="application/json")


def stream_events(
    context: ServerContext, answers: Answers, shape: Shape, options: StreamOptions | None = None
) -> Events:
    """The events of one streamed request; they are measured when it is over."""
    options = options or StreamOptions()
    if options.include_usage:
        return _WithUsage(context, answers, shape, continuous=options.continuous_usage_stats)
    return _StreamEvents(context, answers, shape)


class _StreamEvents:
    def __init__(self, context: ServerContext, answers: Answers, shape: Shape) -> None:
        self._context = context
        self._answers = answers
        self._shape = shape
        self._begun = [False] * len(answers.choices)

    @property
    def finished(self) -> bool:
        return self._answers.finished

    def add(self, outputs: Outputs) -> bytes:
        data = b""
        for piece in self._answers.add(outputs):
            if not self._begun[piece.index]:
                self._begun[piece.index] = True
                data += self._shape.first(piece.index)
            data += self._shape.chunk(piece)
        return data

    def end(self) -> bytes:
        return DONE

    def failed(self, error: ApiError) -> bytes:
        return sse_event(error.body())

    def close(self) -> None:
        self._context.metrics.observe(self._answers)


class _WithUsage(_StreamEvents):
    """Every chunk names the usage: null, or ``continuous``: so far. The last one has nothing else."""

    def __init__(self, context: ServerContext, answers: Answers, shape: Shape, *, continuous: bool) -> None:
        super().__init__(context, answers, shape)
        self._continuous = continuous

    def add(self, outputs: Outputs) -> bytes:
        data = super().add(outputs)
        if not data:
            return data
        usage = encode(self._answers.usage()) if self._continuous else b"null"
        # JSON has no raw line breaks: these end events and nothing else.
        return data.replace(b"}\n\n", b',"usage":%b}\n\n' % usage)

    def end(self) -> bytes:
        return self._shape.usage_chunk(self._answers.usage()) + DONE


def response_head(response_id: str, model: str, created: int | None = None) -> dict[str, Any]:
    """What every object of a response begins with. ``created``: seconds since 1970, now when left out."""
    created = int(time.time()) if created is None else created
    return {"id": response_id, "created": created, "model": model, "system_fingerprint": _FINGERPRINT}


def event(value: dict[str, Any]) -> bytes:
    """``value`` as one server-sent event."""
    return sse_event(encode(value))
