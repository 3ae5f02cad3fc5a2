"""Handlers of ``/v1/responses`` and of what lies below it."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.answers import Answers
from blade_llm.api.body import read_json
from blade_llm.api.chat import chat_prompt
from blade_llm.api.context import ServerContext
from blade_llm.api.errors import ApiError
from blade_llm.api.generate import encode, submit
from blade_llm.api.responses.as_chat import as_chat, asked_in_our_words, in_our_words
from blade_llm.api.responses.envelope import Envelope
from blade_llm.api.responses.output import Output
from blade_llm.api.responses.requests import parse_request
from blade_llm.api.responses.stream import ResponseEvents
from blade_llm.api.resumable import resumable, seeded, streamed
from blade_llm.api.search import Search
from blade_llm.api.sse import run_unary
from blade_llm.api.tools.shape import CallIds
from blade_llm.text.answer_parser import AnswerParsing


async def create(context: ServerContext, request: Request) -> Response:
    """Answer one request. Raises :class:`ApiError`."""
    context.require_service()
    raw = await read_json(request)
    fields = parse_request(raw)
    chat = seeded(as_chat(fields, raw), request)
    model = context.resolve_model(chat.model)
    with in_our_words():
        prompt = await chat_prompt(context, chat, Search())
    prompt = replace(prompt, asked_by=asked_in_our_words(prompt.asked_by))
    stream = resumable(
        request,
        chat,
        [prompt],
        Search(),
        model=model,
        vocab_size=context.model.vocab_size,
        stream=fields.stream,
        # Those of tokens whose text is held back may come with a later event than the tokens.
        refused="log-probabilities of parsed text" if fields.with_logprobs and prompt.parsing is not None else "",
    )
    answers = submit(context, request, chat, [prompt], Search(), "input", resumable=stream)
    number = request.state.request_id
    envelope = Envelope(f"resp_{number}", model, fields, prompt.sampling, None if stream is None else stream.created)
    parsing = prompt.parsing or AnswerParsing()
    output = Output(
        number,
        parsing.parser(),
        context.model.tokenizer,
        with_logprobs=fields.with_logprobs,
        call_ids=CallIds(None if stream is None else stream.key),
    )
    if fields.stream:
        return await streamed(ResponseEvents(context, answers, envelope, output), answers, stream)
    return await run_unary(answers.generation, request.receive, _whole(context, answers, envelope, output))


async def _whole(context: ServerContext, answers: Answers, envelope: Envelope, output: Output) -> Response:
    try:
        while not answers.finished:
            for piece in await answers.next():
                output.add(piece)
    finally:
        context.metrics.observe(answers)
    return Response(encode(envelope.ended(output, answers)), media_type="application/json")


async def stored(context: ServerContext, request: Request) -> Response:
    """What others answer about responses made earlier."""
    name = str(request.path_params["rest"]).partition("/")[0]
    message = f"{name!r}: responses are not stored by this server; keep them at the client"
    raise ApiError(404, message, kind="not_found_error", code="response_not_found")
