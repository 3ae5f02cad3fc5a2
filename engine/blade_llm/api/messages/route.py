"""Handlers of ``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.chat import chat_prompt, count_prompt
from blade_llm.api.chat_request import ChatRequest
from blade_llm.api.common.body import read_json
from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import ApiError, bad_request
from blade_llm.api.common.response_notes import note_left_out
from blade_llm.api.generation.generate import encode, submit, take_all
from blade_llm.api.generation.prompt import Prompt
from blade_llm.api.generation.result import GenerationResult
from blade_llm.api.generation.resumable import resumable, seeded, streamed
from blade_llm.api.generation.search import Search
from blade_llm.api.generation.sse import run_unary
from blade_llm.api.messages.as_chat import FIELD_NAMES, as_chat
from blade_llm.api.messages.output import Envelope, Output
from blade_llm.api.messages.requests import CountTokensRequest, MessagesRequest, PromptFields, parse_request, thinks
from blade_llm.api.messages.stream import MessageEvents
from blade_llm.api.messages.tools import left_out, places
from blade_llm.api.tools.serializer import CallIds
from blade_llm.api.translated_messages import TranslatedMessages
from blade_llm.text.output_parser import OutputParsing

_MANY_BLOCKS: Final = 4_000
"""Blocks from which translating them would hold up other requests' tokens."""


async def create(context: ServerContext, request: Request) -> Response:
    """Serve one message. Raises :class:`ApiError`."""
    context.require_service()
    raw = await read_json(request, context.max_body_bytes)
    fields = parse_request(raw, MessagesRequest)
    chat, messages = await _as_chat(fields, raw)
    del raw
    fields = msgspec.structs.replace(fields, messages=[])  # the chat has a copy of its images' data
    chat = seeded(chat, request)
    model = context.resolve_model(chat.model)
    with messages.named():
        prompt = await _prompt(context, fields, chat)
    room = prompt.sampling.max_tokens
    sampling = msgspec.structs.replace(prompt.sampling, max_tokens=min(fields.max_tokens, room))
    if problem := sampling.problem():
        name, advice = problem
        raise bad_request(f"{name} {advice}", name)
    prompt = replace(prompt, sampling=sampling, field_names=FIELD_NAMES.of_parameters(prompt.field_names))
    stream = resumable(
        request,
        chat,
        [prompt],
        Search(),
        model=model,
        adapter=context.adapter_of(chat.model),
        vocab_size=context.model.vocab_size,
        stream=fields.stream,
    )
    result = submit(context, request, chat, [prompt], Search(), "messages", resumable=stream)
    number = request.state.request_id
    envelope = Envelope(f"msg_{number}", model)
    output = Output(
        (prompt.parsing or OutputParsing()).parser(),
        thinking=fields.thinking if thinks(fields) else None,
        call_ids=CallIds(None if stream is None else stream.key),
        ends_context=fields.max_tokens > room,
    )
    if fields.stream:
        return await streamed(MessageEvents(context, result, envelope, output, number), result, stream)
    return await run_unary(result.generation, request.receive, _whole_message(context, result, envelope, output))


async def count_tokens(context: ServerContext, request: Request) -> Response:
    """Number of tokens that a message's prompt has, without generating anything."""
    raw = await read_json(request, context.max_body_bytes)
    fields = parse_request(raw, CountTokensRequest)
    chat, messages = await _as_chat(fields, raw)
    context.resolve_model(chat.model)
    with FIELD_NAMES.named(places(fields)), messages.named():
        body = {"input_tokens": await count_prompt(context, chat, "messages")}
    return Response(encode(body), media_type="application/json")


async def _as_chat(fields: PromptFields, raw: dict[str, Any]) -> tuple[ChatRequest, TranslatedMessages]:
    """The chat request, and its messages. Raises :class:`ApiError` 400."""
    note_left_out(left_out(fields))
    blocks = 0
    for message in fields.messages:
        content = message.get("content") if isinstance(message, dict) else None
        blocks += len(content) if isinstance(content, list) else 1
    if blocks > _MANY_BLOCKS:
        return await asyncio.to_thread(as_chat, fields, raw)
    return as_chat(fields, raw)


async def _prompt(context: ServerContext, fields: MessagesRequest, chat: ChatRequest) -> Prompt:
    """The prompt, whose output may have all that the context has room for. Raises :class:`ApiError` 400.

    Clients compact a conversation when they read "prompt is too long: N tokens > M maximum", as Anthropic's API says.
    """
    with FIELD_NAMES.named(places(fields)):
        try:
            return await chat_prompt(context, chat, Search())
        except ApiError as error:
            if error.detail.code != "context_length_exceeded":
                raise
            message = error.detail.message
            try:
                size = f"{await count_prompt(context, chat, 'messages')} tokens > {context.max_model_len - 1} maximum"
            except ApiError:
                size = message
            raise bad_request(f"prompt is too long: {size}", "messages", error.detail.code) from None


async def _whole_message(
    context: ServerContext, result: GenerationResult, envelope: Envelope, output: Output
) -> Response:
    await take_all(context, result, output.add)
    return Response(encode(envelope.ended(output, result)), media_type="application/json")
