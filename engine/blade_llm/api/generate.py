"""What both completion routes share: submit to the engine, and answer whole or as a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.answers import Answers, Choice, Piece, join
from blade_llm.api.context import ServerContext
from blade_llm.api.errors import ApiError
from blade_llm.api.requests import GenerationFields
from blade_llm.api.sse import DONE, Events, EventStream, run_unary, sse_event
from blade_llm.engine.client import Outputs
from blade_llm.engine.messages import GenerateRequest
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.text.answer_parser import AnswerParsing

encode = msgspec.json.encode


class Shape(Protocol):
    """How one route writes its answers."""

    def head(self) -> dict[str, Any]:
        """``id``, ``created``, ``model``: what every object begins with."""

    def choice(self, piece: Piece) -> dict[str, Any]:
        """One finished element of ``choices``."""

    def whole(self) -> str:
        """``object`` of a whole answer."""

    def first(self, index: int) -> bytes:
        """A chunk sent before a choice's first text; ``b""`` for none."""

    def chunk(self, piece: Piece) -> bytes:
        """One streamed event."""

    def usage_chunk(self, usage: dict[str, object]) -> bytes:
        """The event without choices that ends a stream with usage."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt's tokens and how to go on from them."""

    token_ids: list[int]
    sampling: SamplingParams
    parsing: AnswerParsing | None = None
    """How its answers are taken apart; None: they are all content."""


async def answer(
    context: ServerContext, request: Request, fields: GenerationFields, prompts: Sequence[Prompt], shape: Shape
) -> Response:
    """Run every prompt ``fields.n`` times, and answer whole or as a stream."""
    answers = submit(context, request, fields, prompts)
    if fields.stream:
        usage = fields.stream_options is not None and fields.stream_options.include_usage
        return EventStream(stream_events(context, answers, shape, with_usage=usage), answers.generation)
    return await run_unary(answers.generation, request.receive, _whole(context, answers, shape))


def submit(context: ServerContext, request: Request, fields: GenerationFields, prompts: Sequence[Prompt]) -> Answers:
    """Begin to run every prompt ``fields.n`` times. Choices are numbered prompt by prompt."""
    context.require_service()
    name = request.state.request_id
    jobs = [(prompt, sample) for prompt in prompts for sample in range(fields.n)]
    generation = context.client.submit(
        [
            GenerateRequest(
                request_id=context.client.new_id(name),
                prompt_token_ids=prompt.token_ids,
                sampling=prompt.sampling,
                sample_index=sample,
                cache_salt=fields.cache_salt,
                priority=fields.priority,
            )
            for prompt, sample in jobs
        ]
    )
    return Answers(
        generation,
        [
            Choice(index, context.model.tokenizer, prompt.token_ids, prompt.sampling, prompt.parsing)
            for index, (prompt, _) in enumerate(jobs)
        ],
        prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
        samples=fields.n,
    )


async def _whole(context: ServerContext, answers: Answers, shape: Shape) -> Response:
    pieces: list[list[Piece]] = [[] for _ in answers.choices]
    try:
        while not answers.finished:
            for piece in await answers.next():
                pieces[piece.index].append(piece)
    finally:
        context.metrics.observe(answers)
    body = {
        **shape.head(),
        "object": shape.whole(),
        "choices": [shape.choice(join(of_choice)) for of_choice in pieces],
        "usage": answers.usage(),
    }
    return Response(encode(body), media_type="application/json")


def stream_events(context: ServerContext, answers: Answers, shape: Shape, *, with_usage: bool) -> Events:
    """The events of one streamed request; they are measured when it is over."""
    return _StreamEvents(context, answers, shape, with_usage)


class _StreamEvents:
    def __init__(self, context: ServerContext, answers: Answers, shape: Shape, with_usage: bool) -> None:
        self._context = context
        self._answers = answers
        self._shape = shape
        self._with_usage = with_usage
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
        return self._shape.usage_chunk(self._answers.usage()) + DONE if self._with_usage else DONE

    def failed(self, error: ApiError) -> bytes:
        return sse_event(error.body())

    def close(self) -> None:
        self._context.metrics.observe(self._answers)


def event(value: dict[str, Any]) -> bytes:
    """``value`` as one server-sent event."""
    return sse_event(encode(value))
