"""``POST /v1/chat/completions``: messages through the chat template, responses as ``chat.completion`` objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.chat_request import ChatRequest
from blade_llm.api.common.body import read_json
from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import bad_request
from blade_llm.api.common.fields import parse
from blade_llm.api.common.response_notes import note_left_out
from blade_llm.api.conversation import Rendered, content_of, render
from blade_llm.api.generation.generate import ResponseSerializer, encode, event, respond, response_head
from blade_llm.api.generation.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from blade_llm.api.generation.prompt import Prompt
from blade_llm.api.generation.prompt_tokens import encode_text, truncated
from blade_llm.api.generation.result import ChoiceUpdate, PromptLogprobs
from blade_llm.api.generation.resumable import resumable, seeded
from blade_llm.api.generation.sampling import bad_word_sequences, check_length, sampling_params
from blade_llm.api.generation.search import Search, search_of
from blade_llm.api.generation.structured_outputs import validated_structure
from blade_llm.api.prompt_images import with_images
from blade_llm.api.tools.grammar import tag_writer
from blade_llm.api.tools.offered import ignored_tools
from blade_llm.api.tools.parsing import guided, offered_tools, output_parsing
from blade_llm.api.tools.serializer import CallIds, ParsedChatSerializer
from blade_llm.api.tools.use import ToolUse

_NO_MORE: Final = {"logprobs": None, "finish_reason": None}
_AFTER_TEXT: Final = b'},"logprobs":null,"finish_reason":null}]}\n\n'
_COUNTED: Final = 4
"""Contexts' worth of text that is counted at most; of a longer prompt it is known that it does not fit."""


async def chat_completions(context: ServerContext, request: Request) -> Response:
    """Serve one chat request. Raises :class:`ApiError`."""
    context.require_service()
    chat = seeded(parse(await read_json(request, context.max_body_bytes), ChatRequest), request)
    note_left_out(ignored_tools(chat.tools))
    model = context.resolve_model(chat.model)
    search = search_of(chat)
    if chat.prompt_logprobs is not None and chat.stream:
        raise bad_request("prompt_logprobs cannot be streamed; send stream: false", "prompt_logprobs")
    prompt = await chat_prompt(context, chat, search)
    stream = resumable(
        request,
        chat,
        [prompt],
        search,
        model=model,
        adapter=context.adapter_of(chat.model),
        vocab_size=context.model.vocab_size,
        stream=chat.stream,
    )
    plain = ChatSerializer(
        f"chatcmpl-{chat.request_id or request.state.request_id}",
        model,
        TokenNames(context.model.tokenizer, by_id=chat.return_tokens_as_token_ids),
        with_logprobs=chat.logprobs,
        prompt=prompt.token_ids if chat.prompt_logprobs is not None else None,
        created=None if stream is None else stream.created,
        echo=_echoed(chat),
        with_token_ids=chat.return_token_ids,
        first_fields=_first_fields(chat, prompt),
    )
    serializer: ResponseSerializer = plain
    if prompt.parsing is not None:
        serializer = ParsedChatSerializer(
            plain,
            prompt.parsing,
            include_reasoning=chat.include_reasoning,
            call_ids=CallIds(None if stream is None else stream.key),
        )
    return await respond(context, request, chat, [prompt], serializer, search, "messages", stream)


async def rendered(context: ServerContext, chat: ChatRequest) -> tuple[ToolUse | None, Rendered]:
    """The tools that a chat offers, and its conversation as the template writes it. Raises :class:`ApiError` 400."""
    tools = offered_tools(
        context.model,
        chat.tools,
        chat.tool_choice,
        parallel=chat.parallel_tool_calls,
        own_template=chat.chat_template is not None,
    )
    return tools, await render(context, chat, tools)


async def chat_prompt(context: ServerContext, chat: ChatRequest, search: Search) -> Prompt:
    """The conversation as tokens, with its images, sampling parameters and parsing. Raises :class:`ApiError`, see
    :func:`~blade_llm.api.prompt_images.with_images`."""
    tools, (text, parts) = await rendered(context, chat)
    if parts and chat.truncate_prompt_tokens is not None:
        message = "truncate_prompt_tokens could cut an image in two; leave it out with images"
        raise bad_request(message, "truncate_prompt_tokens", "unsupported")
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
    tokens = await with_images(context, token_ids, parts, context.max_model_len)
    token_ids = truncated(tokens.token_ids, chat.truncate_prompt_tokens, room, chat.truncation_side)
    structure, structure_field = await validated_structure(
        chat, context.structures, tag_writer(context.model.tokenizer)
    )
    sampling = sampling_params(
        chat,
        context.model.sampling_defaults,
        search,
        max_tokens=_length(context, chat, len(token_ids)),
        logprobs=_top_logprobs(chat),
        vocab_size=context.model.vocab_size,
        prompt_logprobs=chat.prompt_logprobs,
        structure=structure,
        bad_words=bad_word_sequences(chat, context.model.tokenizer),
    )
    parsing = output_parsing(context.model, tools, text, _generated_text(chat))
    sampling = await guided(sampling, parsing, tools, context.model.tokenizer, context.structures)
    field_names = {"structure": structure_field or "tools", **search.field_names}
    return Prompt(
        token_ids,
        sampling,
        parsing=parsing,
        text=text,
        field_names=field_names,
        images=tokens.images,
        pixels=tokens.pixels,
    )


async def count_prompt(context: ServerContext, chat: ChatRequest, param: str) -> int:
    """Tokens of the prompt, those of its images included. Raises :class:`ApiError` as :func:`chat_prompt`, also for one
    that is far longer than the context, which names ``param``."""
    _, (text, parts) = await rendered(context, chat)
    limit = _COUNTED * context.max_model_len
    token_ids = await encode_text(context.model.tokenizer, text, add_special_tokens=False, limit=limit, param=param)
    return len((await with_images(context, token_ids, parts)).token_ids)


class ChatSerializer:
    """Writes chat completions. What every chunk has in common is encoded once.

    Args:
        prompt: token ids, if the whole response includes their log-probabilities.
        echo: what content begins with.
        with_token_ids: each choice has those of its tokens.
        first_fields: further fields of a whole response, or of the first chunk of each choice.
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
        echo: str = "",
        with_token_ids: bool = False,
        first_fields: Mapping[str, Any] | None = None,
    ) -> None:
        self.echo = echo
        self.first_fields = first_fields or {}
        self._with_token_ids = with_token_ids
        self._head = response_head(response_id, model, created)
        self._chunk_head = {**self._head, "object": "chat.completion.chunk"}
        self._names = names
        self._with_logprobs = with_logprobs
        self._prompt = prompt
        self.prompt_logprobs: dict[int, PromptLogprobs] = {}
        self._before_index = b"data: " + encode(self._chunk_head)[:-1] + b',"choices":[{"index":'

    def head(self) -> dict[str, Any]:
        return self._head

    def object_name(self) -> str:
        return "chat.completion"

    def choice(self, update: ChoiceUpdate) -> dict[str, Any]:
        return {
            "index": update.index,
            "message": {"role": "assistant", "content": self.echo + update.text, "refusal": None},
            "logprobs": self._logprobs(update),
            "finish_reason": update.finish_reason,
            "stop_reason": update.stop_reason,
            **({"token_ids": update.token_ids} if self._with_token_ids else {}),
        }

    def extra_fields(self) -> dict[str, Any]:
        if self._prompt is None:
            return {**self.first_fields}
        logprobs = prompt_logprobs(self._prompt, self.prompt_logprobs[0], self._names)
        return {**self.first_fields, "prompt_logprobs": logprobs}

    @property
    def opens_choices(self) -> bool:
        return True

    def first_chunk(self, index: int) -> bytes:
        return self.opening(index, "")

    def opening(self, index: int, content: str | None) -> bytes:
        """The event that says the role, and with it ``content`` and what is said once; then the echo."""
        choice = {"index": index, "delta": {"role": "assistant", "content": content}, **_NO_MORE}
        data = event({**self._chunk_head, "choices": [choice], **self.first_fields})
        return data + self._event(ChoiceUpdate(index, "", []), {"content": self.echo}) if self.echo else data

    def chunk(self, update: ChoiceUpdate) -> bytes:
        plain = not self._with_logprobs and not self._with_token_ids
        if update.text and update.finish_reason is None and plain:  # nearly all of them
            return b"%b%d,\"delta\":{\"content\":%b%b" % (
                self._before_index, update.index, encode(update.text), _AFTER_TEXT
            )  # fmt: skip
        delta = {"content": update.text} if update.text else {}
        return self._event(update, delta, self._logprobs(update))

    def usage_chunk(self, usage: dict[str, object]) -> bytes:
        return event({**self._chunk_head, "choices": [], "usage": usage})

    def _event(self, update: ChoiceUpdate, delta: dict[str, str], logprobs: dict[str, Any] | None = None) -> bytes:
        ids = b',"token_ids":%b' % encode(update.token_ids) if self._with_token_ids else b""
        return b"%b%d,\"delta\":%b,\"logprobs\":%b,\"finish_reason\":%b%b}]}\n\n" % (
            self._before_index, update.index, encode(delta), encode(logprobs), encode(update.finish_reason), ids
        )  # fmt: skip

    def _logprobs(self, update: ChoiceUpdate) -> dict[str, Any] | None:
        return chat_logprobs(update.entries, self._names) if self._with_logprobs else None


def _echoed(chat: ChatRequest) -> str:
    return content_of(chat.messages[-1]) if chat.echo and chat.messages[-1].get("role") == "assistant" else ""


def _first_fields(chat: ChatRequest, prompt: Prompt) -> dict[str, Any]:
    ids = {"prompt_token_ids": prompt.token_ids} if chat.return_token_ids else {}
    return {**ids, **({"prompt_text": prompt.text} if chat.return_prompt_text else {})}


def _length(context: ServerContext, chat: ChatRequest, prompt_tokens: int) -> int:
    name = "max_tokens" if chat.max_completion_tokens is None else "max_completion_tokens"
    return check_length(prompt_tokens, chat.token_limit, None, context.max_model_len, "messages", name)


def _generated_text(chat: ChatRequest) -> str:
    """The text of an unfinished output that is to be continued."""
    if not chat.continue_final_message:
        return chat.resume_response
    return content_of(chat.messages[-1])


def _top_logprobs(chat: ChatRequest) -> int | None:
    if chat.top_logprobs is not None and not chat.logprobs:
        raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
    return chat.top_logprobs or 0 if chat.logprobs else None
