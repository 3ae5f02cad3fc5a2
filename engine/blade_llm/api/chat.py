"""``POST /v1/chat/completions``: messages through the chat template, answers as ``chat.completion`` objects."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.answers import Piece
from blade_llm.api.body import read_json
from blade_llm.api.context import ServerContext
from blade_llm.api.errors import bad_request
from blade_llm.api.fields import parse
from blade_llm.api.generate import Prompt, Shape, answer, encode, event
from blade_llm.api.logprobs import chat_logprobs
from blade_llm.api.prompts import encode_text
from blade_llm.api.requests import ChatRequest, check_length, sampling_params
from blade_llm.api.tools.messages import with_calls
from blade_llm.api.tools.parsing import answer_parsing, chat_tools, guide
from blade_llm.api.tools.shape import ParsedChatShape
from blade_llm.api.tools.use import ToolUse, template_arguments
from blade_llm.text.chat_template import RESERVED
from blade_llm.text.errors import ChatTemplateError
from blade_llm.text.tokenizer import Tokenizer

_AFTER_TEXT: Final = b'},"logprobs":null,"finish_reason":null}]}\n\n'


async def chat_completions(context: ServerContext, request: Request) -> Response:
    """Answer one chat request. Raises :class:`ApiError`."""
    context.require_service()
    chat = parse(await read_json(request), ChatRequest)
    model = context.resolve_model(chat.model)
    prompt = await chat_prompt(context, chat)
    shape: Shape = ChatShape(
        f"chatcmpl-{request.state.request_id}", model, context.model.tokenizer, with_logprobs=chat.logprobs
    )
    if prompt.parsing is not None:
        shape = ParsedChatShape(shape, prompt.parsing, include_reasoning=chat.include_reasoning)
    return await answer(context, request, chat, [prompt], shape)


async def chat_prompt(context: ServerContext, chat: ChatRequest) -> Prompt:
    """The conversation as tokens, and how to answer it. Raises :class:`ApiError` 400."""
    tools = chat_tools(context.model, chat)
    text = _render(context, chat, tools)
    token_ids = await encode_text(context.model.tokenizer, text, add_special_tokens=False)
    sampling = sampling_params(
        chat,
        context.model.sampling_defaults,
        max_tokens=check_length(len(token_ids), chat.token_limit, None, context.max_model_len, "messages"),
        logprobs=_top_logprobs(chat),
        vocab_size=context.model.vocab_size,
    )
    parsing = answer_parsing(context.model, tools, text)
    return Prompt(token_ids, guide(sampling, parsing, tools, context.model.tokenizer), parsing)


class ChatShape:
    """Writes chat answers. What every chunk has in common is encoded once."""

    def __init__(self, response_id: str, model: str, tokenizer: Tokenizer, *, with_logprobs: bool) -> None:
        self._head = {"id": response_id, "created": int(time.time()), "model": model}
        self._chunk_head = {**self._head, "object": "chat.completion.chunk"}
        self._tokenizer = tokenizer
        self._with_logprobs = with_logprobs
        self._before_index = b"data: " + encode(self._chunk_head)[:-1] + b',"choices":[{"index":'

    def head(self) -> dict[str, Any]:
        return self._head

    def whole(self) -> str:
        return "chat.completion"

    def choice(self, piece: Piece) -> dict[str, Any]:
        return {
            "index": piece.index,
            "message": {"role": "assistant", "content": piece.text, "refusal": None},
            "logprobs": self._logprobs(piece),
            "finish_reason": piece.finish_reason,
        }

    def first(self, index: int) -> bytes:
        return self._event(index, {"role": "assistant", "content": ""}, None, None)

    def chunk(self, piece: Piece) -> bytes:
        if piece.text and piece.finish_reason is None and not self._with_logprobs:  # nearly all of them
            return b"%b%d,\"delta\":{\"content\":%b%b" % (
                self._before_index, piece.index, encode(piece.text), _AFTER_TEXT
            )  # fmt: skip
        delta = {"content": piece.text} if piece.text else {}
        return self._event(piece.index, delta, self._logprobs(piece), piece.finish_reason)

    def usage_chunk(self, usage: dict[str, object]) -> bytes:
        return event({**self._chunk_head, "choices": [], "usage": usage})

    def _event(
        self, index: int, delta: dict[str, str], logprobs: dict[str, Any] | None, finish_reason: str | None
    ) -> bytes:
        return b"%b%d,\"delta\":%b,\"logprobs\":%b,\"finish_reason\":%b}]}\n\n" % (
            self._before_index, index, encode(delta), encode(logprobs), encode(finish_reason)
        )  # fmt: skip

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        return chat_logprobs(piece.entries, self._tokenizer) if self._with_logprobs else None


def _render(context: ServerContext, chat: ChatRequest, tools: ToolUse | None) -> str:
    if context.model.chat_template is None:
        raise bad_request(
            "this model has no chat template; start the server with --chat_template FILE, or use /v1/completions"
        )
    if not chat.messages:
        raise bad_request("messages must hold at least one message", "messages")
    if taken := RESERVED & chat.chat_template_kwargs.keys():
        raise bad_request(f"chat_template_kwargs may not set {sorted(taken)[0]!r}", "chat_template_kwargs")
    messages = [_message(message, index) for index, message in enumerate(chat.messages)]
    arguments = {**chat.chat_template_kwargs, **template_arguments(tools)}
    try:
        return context.model.chat_template.render(
            messages, add_generation_prompt=chat.add_generation_prompt, arguments=arguments
        )
    except ChatTemplateError as error:
        raise bad_request(str(error), "messages") from None


def _message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Checked, and with content parts joined to one string."""
    where = f"messages[{index}]"
    if not isinstance(message.get("role"), str):
        raise bad_request(f"{where}.role must be a string: system, user or assistant", "messages")
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    elif content is None and message["role"] == "assistant":
        content = ""
    elif not isinstance(content, str):
        raise bad_request(f"{where}.content must be a string or a list of text parts", "messages")
    return with_calls({**message, "content": content}, where)


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind in ("image_url", "input_audio", "file", "video_url", "audio_url"):
        raise bad_request(f"{where}: {kind} is not supported by this model; send text", "messages", "unsupported")
    raise bad_request(f'{where} must be {{"type": "text", "text": …}}', "messages")


def _top_logprobs(chat: ChatRequest) -> int | None:
    if chat.top_logprobs is not None and not chat.logprobs:
        raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
    if chat.top_logprobs is not None and not 0 <= chat.top_logprobs <= 20:
        raise bad_request("top_logprobs must lie between 0 and 20", "top_logprobs")
    return chat.top_logprobs or 0 if chat.logprobs else None
