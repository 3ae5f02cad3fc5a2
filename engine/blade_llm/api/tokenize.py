"""``POST /tokenize`` and ``/detokenize``: the model's tokenizer, without the engine. Shapes are vLLM's."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.common.body import read_json
from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import bad_request
from blade_llm.api.common.fields import parse
from blade_llm.api.conversation import Rendered, render
from blade_llm.api.generation.prompt_tokens import LONG_IDS, encode_text, in_tokenizer_thread, long_ids
from blade_llm.api.generation.requests import ReasoningEffort
from blade_llm.api.prompt_images import with_images
from blade_llm.api.tools.parsing import offered_tools
from blade_llm.api.tools.requests import Tool, ToolChoice
from blade_llm.text.tokenizer import Tokenizer

_MAX_CHARACTERS: Final = 1_000_000
_CHARACTERS_A_TOKEN: Final = 16
"""More than any text has on the average: a context's worth of text can always be counted."""
_MAX_IDS: Final = 1_000_000


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /tokenize``: a ``prompt``, or ``messages`` and what makes a prompt of them."""

    model: str | None = None
    """One of the served names; the only model when left out."""
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    """Begin-of-sequence and the like; true for a prompt, false for messages."""
    return_token_strs: bool = False
    """Also return how the vocabulary spells each token."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    resume_response: str = ""
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = {}
    reasoning_effort: ReasoningEffort | None = None
    documents: list[dict[str, str]] = []
    mm_processor_kwargs: dict[str, Any] = {}
    """As in a chat request."""
    tools: list[Tool] = []
    tool_choice: ToolChoice | None = None
    """``none`` leaves the tools out."""


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /detokenize``"""

    tokens: list[Any]
    model: str | None = None
    """One of the served names; the only model when left out."""


async def tokenize(context: ServerContext, request: Request) -> Response:
    """Token ids of a text or a conversation."""
    fields = parse(await read_json(request, context.max_body_bytes), TokenizeRequest, ignored={}, refused={})
    context.resolve_model(fields.model)
    if (fields.prompt is None) == (fields.messages is None):
        raise bad_request("send either prompt or messages", "prompt")
    tokenizer = context.model.tokenizer
    special = fields.messages is None if fields.add_special_tokens is None else fields.add_special_tokens
    text, images = (fields.prompt, []) if fields.prompt is not None else await _conversation(context, fields)
    _check_size(len(text), context.max_model_len, "messages" if fields.prompt is None else "prompt")
    token_ids = await encode_text(tokenizer, text, add_special_tokens=special)
    if fields.messages is not None:
        token_ids = (await with_images(context, token_ids, images)).token_ids
    body = {
        "count": len(token_ids),
        "max_model_len": context.max_model_len,
        "tokens": token_ids,
        "token_strs": await _spelled(tokenizer, token_ids) if fields.return_token_strs else None,
    }
    return Response(msgspec.json.encode(body), media_type="application/json")


def _check_size(characters: int, max_model_len: int, param: str) -> None:
    most = max(_MAX_CHARACTERS, max_model_len * _CHARACTERS_A_TOKEN)
    if characters > most:
        raise bad_request(f"{param}: {characters} characters are more than {most}; send less at once", param)


async def _spelled(tokenizer: Tokenizer, token_ids: list[int]) -> list[str | None]:
    def spell() -> list[str | None]:
        return [tokenizer.token(token_id) for token_id in token_ids]

    return spell() if len(token_ids) < LONG_IDS else await asyncio.to_thread(spell)


async def _conversation(context: ServerContext, fields: TokenizeRequest) -> Rendered:
    own_template = fields.chat_template is not None
    tools = offered_tools(context.model, fields.tools, fields.tool_choice, own_template=own_template)
    return await render(context, fields, tools)


async def detokenize(context: ServerContext, request: Request) -> Response:
    """The text of token ids."""
    fields = parse(await read_json(request, context.max_body_bytes), DetokenizeRequest, ignored={}, refused={})
    context.resolve_model(fields.model)
    most = max(_MAX_IDS, context.max_model_len)
    if len(fields.tokens) > most:
        raise bad_request(f"tokens: {len(fields.tokens)} are more than {most}; send less at once", "tokens")
    token_ids = await long_ids(fields.tokens, context.model.vocab_size, "tokens", None)
    text = await in_tokenizer_thread(context.model.tokenizer.decode, token_ids, skip_special_tokens=False)
    return Response(msgspec.json.encode({"prompt": text}), media_type="application/json")
