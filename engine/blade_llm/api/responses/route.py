"""Handlers of ``/v1/responses`` and ``/v1/responses/input_tokens``."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.chat import chat_prompt, count_prompt
from blade_llm.api.chat_request import ChatRequest
from blade_llm.api.common.body import read_json
from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.response_notes import note_left_out
from blade_llm.api.generation.generate import encode, submit, take_all
from blade_llm.api.generation.prompt import Prompt
from blade_llm.api.generation.result import GenerationResult
from blade_llm.api.generation.resumable import RESUMED, resumable, seeded, streamed
from blade_llm.api.generation.search import Search
from blade_llm.api.generation.sse import run_unary
from blade_llm.api.responses.as_chat import FIELD_NAMES, as_chat
from blade_llm.api.responses.conversation import messages_of
from blade_llm.api.responses.envelope import Envelope
from blade_llm.api.responses.functions import ResponseTools, read_tools
from blade_llm.api.responses.memory import Keeping, Kept, earlier_items, own_items, owner_of, response_id
from blade_llm.api.responses.output import Output
from blade_llm.api.responses.references import has_references, item_number, resolved
from blade_llm.api.responses.requests import ResponsesRequest, parse_count, parse_request
from blade_llm.api.responses.stream import ResponseEvents
from blade_llm.api.responses.truncation import fitting
from blade_llm.api.responses.types import InputTokens
from blade_llm.api.tools.serializer import CallIds
from blade_llm.api.translated_messages import TranslatedMessages
from blade_llm.text.output_parser import OutputParsing
from blade_protocol.resume import ResumeRequest

_LONG_INPUT: Final = 4_000
"""Items (or characters) from which translating them would hold up other requests' tokens."""


@dataclass(frozen=True)
class _Asked:
    """What a request asks, and the chat that it is. ``fields``: with the items in place of references to them."""

    fields: ResponsesRequest
    tools: ResponseTools
    messages: TranslatedMessages
    chat: ChatRequest
    owner: str


async def _asked(context: ServerContext, request: Request, raw: dict[str, Any], fields: ResponsesRequest) -> _Asked:
    """``raw``: the body ``fields`` was made of. Raises :class:`ApiError`."""
    tools = read_tools(fields.tools)
    note_left_out(tools.ignored)
    owner, earlier = owner_of(request), list[dict[str, Any]]()
    if fields.previous_response_id is not None:
        earlier = await asyncio.to_thread(earlier_items, context, fields.previous_response_id, owner)
    if has_references(fields.input):
        items = await asyncio.to_thread(resolved, context, fields.input, owner)
        fields = msgspec.structs.replace(fields, input=items)
    read = functools.partial(messages_of, fields.input, fields.instructions, earlier)
    messages = await asyncio.to_thread(read) if len(fields.input) + len(earlier) > _LONG_INPUT else read()
    return _Asked(fields, tools, messages, as_chat(fields, raw, tools, messages.messages), owner)


async def count_input_tokens(context: ServerContext, request: Request) -> Response:
    """Number of tokens that a response's prompt has, without generating anything."""
    raw, fields = parse_count(await read_json(request, context.max_body_bytes))
    asked = await _asked(context, request, raw, fields)
    context.resolve_model(asked.chat.model)
    with FIELD_NAMES.named(asked.tools.places), asked.messages.named():
        count = await count_prompt(context, asked.chat, "input")
    return Response(encode(InputTokens("response.input_tokens", count)), media_type="application/json")


async def create(context: ServerContext, request: Request) -> Response:
    """Serve one request. Raises :class:`ApiError`."""
    context.require_service()
    raw = await read_json(request, context.max_body_bytes)
    fields = parse_request(raw)
    asked = await _asked(context, request, raw, fields)
    fields, tools, messages, owner = asked.fields, asked.tools, asked.messages, asked.owner
    chat = seeded(asked.chat, request)
    model = context.resolve_model(chat.model)

    async def prompt_of(kept: list[dict[str, Any]]) -> Prompt:
        with messages.named(kept):
            return await chat_prompt(context, msgspec.structs.replace(chat, messages=kept), Search())

    with FIELD_NAMES.named(tools.places):
        if fields.truncation == "auto":
            prompt = await fitting(messages.messages, prompt_of, context.max_model_len, chat.token_limit)
        else:
            prompt = await prompt_of(messages.messages)
    prompt = replace(prompt, field_names=FIELD_NAMES.of_parameters(prompt.field_names))
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
    stored = context.responses.enabled and fields.store is not False
    created = None if stream is None else stream.created
    name = response_id(request, stream)
    envelope = Envelope(name, model, fields, prompt.sampling, created, stored=stored)

    # One that another engine began has its mark: without a router that knows, nobody would look for it here.
    resumed: ResumeRequest | None = request.scope.get(RESUMED)

    def what(body: dict[str, Any]) -> Kept:
        return Kept(owner=owner, previous=fields.previous_response_id, input=own_items(fields.input), response=body)

    keeping = Keeping(context, what if stored and (resumed is None or resumed.owner is not None) else None)
    parsing = prompt.parsing or OutputParsing()
    output = Output(
        item_number(name),
        parsing.parser(),
        context.model.tokenizer,
        with_logprobs=fields.with_logprobs,
        call_ids=CallIds(None if stream is None else stream.key),
        freeform=parsing.freeform,
        namespaces=tools.namespaces,
    )
    if fields.stream:
        events = ResponseEvents(context, result, envelope, output, keeping.ended)
        return await streamed(events, result, stream, keeping.settled)
    whole = _whole_response(context, result, envelope, output, keeping)
    return await run_unary(result.generation, request.receive, whole)


async def _whole_response(
    context: ServerContext,
    result: GenerationResult,
    envelope: Envelope,
    output: Output,
    keeping: Keeping,
) -> Response:
    await take_all(context, result, output.add)
    body = envelope.ended(output, result)
    keeping.ended(body)
    await keeping.settled()
    return Response(encode(body), media_type="application/json")
