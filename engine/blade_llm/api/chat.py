"""``POST /v1/chat/completions``: messages through the chat template, answers as ``chat.completion`` objects."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.answers import Piece, PromptLogprobs
from blade_llm.api.body import read_json
from blade_llm.api.context import ServerContext
from blade_llm.api.conversation import content_of, render
from blade_llm.api.errors import bad_request
from blade_llm.api.fields import parse
from blade_llm.api.generate import Prompt, Shape, answer, encode, event, response_head
from blade_llm.api.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from blade_llm.api.prompts import encode_text, truncated
from blade_llm.api.requests import ChatRequest, check_length, sampling_params
from blade_llm.api.resumable import resumable, seeded
from blade_llm.api.search import Search, search_of
from blade_llm.api.structured import checked_structure
from blade_llm.api.tools.parsing import answer_parsing, guided, offered_tools
from blade_llm.api.tools.shape import CallIds, ParsedChatShape

_AFTER_TEXT: Final = b'},"logprobs":null,"finish_reason":null}]}\n\n'


async def chat_completions(context: ServerContext, request: Request) -> Response:
    """Answer one chat request. Raises :class:`ApiError`."""
    context.require_service()
    chat = seeded(parse(await read_json(request), ChatRequest), request)
    model = context.resolve_model(chat.model)
    search = search_of(chat)
    if chat.prompt_logprobs is not None and chat.stream:
        raise bad_request("prompt_logprobs cannot be streamed; send stream: false", "prompt_logprobs")
    prompt = await chat_prompt(context, chat, search)
    stream = resumable(
        request, chat, [prompt], search, model=model, vocab_size=context.model.vocab_size, stream=chat.stream
    )
    shape: Shape = ChatShape(
        f"chatcmpl-{request.state.request_id}",
        model,
        TokenNames(context.model.tokenizer, by_id=chat.return_tokens_as_token_ids),
        with_logprobs=chat.logprobs,
        prompt=prompt.token_ids if chat.prompt_logprobs is not None else None,
        created=None if stream is None else stream.created,
    )
    if prompt.parsing is not None:
        shape = ParsedChatShape(
            shape,
            prompt.parsing,
            include_reasoning=chat.include_reasoning,
            call_ids=CallIds(None if stream is None else stream.key),
        )
    return await answer(context, request, chat, [prompt], shape, search, "messages", stream)


async def chat_prompt(context: ServerContext, chat: ChatRequest, search: Search) -> Prompt:
    """The conversation as tokens, and how to answer it. Raises :class:`ApiError` 400."""
    tools = offered_tools(
        context.model,
        chat.tools,
        chat.tool_choice,
        parallel=chat.parallel_tool_calls,
        own_template=chat.chat_template is not None,
    )
    text = await render(context, chat, tools)
    token_ids = await encode_text(
        context.model.tokenizer,
        text,
        add_special_tokens=chat.add_special_tokens or False,
        limit=context.max_model_len if chat.truncate_prompt_tokens is None else None,
        param="messages",
    )
    if not token_ids:
        raise bad_request("the chat template made an empty prompt of these messages", "messages")
    room = context.max_model_len - (chat.token_limit or 1)
    token_ids = truncated(token_ids, chat.truncate_prompt_tokens, room)
    structure, asked_in = await checked_structure(chat, context.structures)
    sampling = sampling_params(
        chat,
        context.model.sampling_defaults,
        search,
        max_tokens=_length(context, chat, len(token_ids)),
        logprobs=_top_logprobs(chat),
        vocab_size=context.model.vocab_size,
        prompt_logprobs=chat.prompt_logprobs,
        structure=structure,
    )
    parsing = answer_parsing(context.model, tools, text, _said(chat))
    sampling = await guided(sampling, parsing, tools, context.model.tokenizer, context.structures)
    asked_by = {"structure": asked_in or "tools", "beam_width": search.width_field}
    return Prompt(token_ids, sampling, parsing=parsing, asked_by=asked_by)


class ChatShape:
    """Writes chat answers. What every chunk has in common is encoded once.

    Args:
        prompt: token ids, whose log-probabilities the whole answer shall tell.
    """

    def __init__(
        self,
        response_id: str,
        model: str,
        names: TokenNames,
        *,
        with_logprobs: bool = False,
        prompt: list[int] | None = None,
        created: int | None = None,
    ) -> None:
        self._head = response_head(response_id, model, created)
        self._chunk_head = {**self._head, "object": "chat.completion.chunk"}
        self._names = names
        self._with_logprobs = with_logprobs
        self._prompt = prompt
        self.prompt_logprobs: dict[int, PromptLogprobs] = {}
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
            "stop_reason": piece.stop_reason,
        }

    def around(self) -> dict[str, Any]:
        if self._prompt is None:
            return {}
        return {"prompt_logprobs": prompt_logprobs(self._prompt, self.prompt_logprobs[0], self._names)}

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
        return chat_logprobs(piece.entries, self._names) if self._with_logprobs else None


def _length(context: ServerContext, chat: ChatRequest, prompt_tokens: int) -> int:
    name = "max_tokens" if chat.max_completion_tokens is None else "max_completion_tokens"
    return check_length(prompt_tokens, chat.token_limit, None, context.max_model_len, "messages", name)


def _said(chat: ChatRequest) -> str:
    """What the answer that is gone on with has said."""
    if not chat.continue_final_message:
        return chat.resume_response
    return content_of(chat.messages[-1])


def _top_logprobs(chat: ChatRequest) -> int | None:
    if chat.top_logprobs is not None and not chat.logprobs:
        raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
    return chat.top_logprobs or 0 if chat.logprobs else None
