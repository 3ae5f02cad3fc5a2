"""Handlers of ``/v1/responses`` and of what lies below it."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.chat import chat_prompt
from blade_llm.api.common.body import read_json
from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import ApiError
from blade_llm.api.generation.generate import encode, submit
from blade_llm.api.generation.result import GenerationResult
from blade_llm.api.generation.resumable import resumable, seeded, streamed
from blade_llm.api.generation.search import Search
from blade_llm.api.generation.sse import run_unary
from blade_llm.api.responses.as_chat import as_chat, response_field_names, with_response_field_names
from blade_llm.api.responses.conversation import messages_of
from blade_llm.api.responses.envelope import Envelope
from blade_llm.api.responses.functions import read_tools
from blade_llm.api.responses.output import Output
from blade_llm.api.responses.requests import parse_request
from blade_llm.api.responses.stream import ResponseEvents
from blade_llm.api.tools.offered import note_ignored
from blade_llm.api.tools.serializer import CallIds
from blade_llm.text.output_parser import OutputParsing


async def create(context: ServerContext, request: Request) -> Response:
    """Serve one request. Raises :class:`ApiError`."""
    context.require_service()
    raw = await read_json(request, context.max_body_bytes)
    fields = parse_request(raw)
    tools = read_tools(fields.tools)
    note_ignored(request, tools.ignored)
    messages = messages_of(fields.input, fields.instructions)
    chat = seeded(as_chat(fields, raw, tools, messages), request)
    model = context.resolve_model(chat.model)
    with with_response_field_names():
        prompt = await chat_prompt(context, chat, Search())
    prompt = replace(prompt, field_names=response_field_names(prompt.field_names))
    stream = resumable(
        request,
        chat,
        [prompt],
        Search(),
        model=model,
        adapter=context.adapter_of(chat.model),
        vocab_size=context.model.vocab_size,
        stream=fields.stream,
        # Those of tokens whose text is held back may come with a later event than the tokens.
        refused="log-probabilities of parsed text" if fields.with_logprobs and prompt.parsing is not None else "",
    )
    result = submit(context, request, chat, [prompt], Search(), "input", resumable=stream)
    number = request.state.request_id
    envelope = Envelope(f"resp_{number}", model, fields, prompt.sampling, None if stream is None else stream.created)
    parsing = prompt.parsing or OutputParsing()
    output = Output(
        number,
        parsing.parser(),
        context.model.tokenizer,
        with_logprobs=fields.with_logprobs,
        call_ids=CallIds(None if stream is None else stream.key),
        freeform=parsing.freeform,
        namespaces=tools.namespaces,
    )
    if fields.stream:
        return await streamed(ResponseEvents(context, result, envelope, output), result, stream)
    return await run_unary(result.generation, request.receive, _whole_response(context, result, envelope, output))


async def _whole_response(
    context: ServerContext, result: GenerationResult, envelope: Envelope, output: Output
) -> Response:
    try:
        while not result.finished:
            for update in await result.next():
                output.add(update)
    finally:
        context.metrics.observe(result)
    return Response(encode(envelope.ended(output, result)), media_type="application/json")


async def stored(context: ServerContext, request: Request) -> Response:
    """Refuse: other servers return responses that they stored."""
    name = str(request.path_params["rest"]).partition("/")[0]
    message = f"{name!r}: responses are not stored by this server; keep them at the client"
    raise ApiError(404, message, kind="not_found_error", code="response_not_found")
