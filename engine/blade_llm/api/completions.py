"""``POST /v1/completions``: text or token ids go on as they are, answers as ``text_completion`` objects."""

from __future__ import annotations

import time
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.answers import Piece
from blade_llm.api.body import read_json
from blade_llm.api.context import ServerContext
from blade_llm.api.errors import bad_request
from blade_llm.api.fields import parse
from blade_llm.api.generate import Prompt, answer, encode, event
from blade_llm.api.logprobs import completion_logprobs
from blade_llm.api.prompts import completion_prompts
from blade_llm.api.requests import CompletionRequest, check_length, sampling_params
from blade_llm.api.structured import checked_structure
from blade_llm.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS: Final = 16
_AFTER_TEXT: Final = b',"logprobs":null,"finish_reason":null}]}\n\n'


async def completions(context: ServerContext, request: Request) -> Response:
    """Answer one completion request. Raises :class:`ApiError`."""
    context.require_service()
    fields = parse(await read_json(request), CompletionRequest)
    model = context.resolve_model(fields.model)
    if fields.echo and fields.logprobs is not None:
        raise bad_request("echo with logprobs is not available in this version; leave one out", "echo", "unsupported")
    structure = await checked_structure(fields, context.structures)
    prompts = []
    tokenizer, vocab_size = context.model.tokenizer, context.model.vocab_size
    for token_ids in await completion_prompts(fields.prompt, tokenizer, vocab_size, n=fields.n):
        limit = check_length(len(token_ids), fields.max_tokens, DEFAULT_MAX_TOKENS, context.max_model_len, "prompt")
        sampling = sampling_params(
            fields,
            context.model.sampling_defaults,
            max_tokens=limit,
            logprobs=fields.logprobs,
            vocab_size=vocab_size,
            structure=structure,
        )
        prompts.append(Prompt(token_ids, sampling))
    echoed = prompts if fields.echo else []
    shape = CompletionShape(
        f"cmpl-{request.state.request_id}",
        model,
        tokenizer,
        echoes=[text for prompt in echoed for text in [tokenizer.decode(prompt.token_ids)] * fields.n],
        with_logprobs=fields.logprobs is not None,
    )
    return await answer(context, request, fields, prompts, shape)


class CompletionShape:
    """Writes text completions. What every chunk has in common is encoded once."""

    def __init__(
        self, response_id: str, model: str, tokenizer: Tokenizer, *, echoes: list[str], with_logprobs: bool
    ) -> None:
        self._head = {"id": response_id, "created": int(time.time()), "model": model}
        self._chunk_head = {**self._head, "object": "text_completion"}
        self._tokenizer = tokenizer
        self._echoes = echoes
        """Prompt text of each choice, put before its answer; empty without ``echo``."""
        self._with_logprobs = with_logprobs
        self._before_index = b"data: " + encode(self._chunk_head)[:-1] + b',"choices":[{"index":'

    def head(self) -> dict[str, Any]:
        return self._head

    def whole(self) -> str:
        return "text_completion"

    def choice(self, piece: Piece) -> dict[str, Any]:
        return {
            "index": piece.index,
            "text": (self._echoes[piece.index] if self._echoes else "") + piece.text,
            "logprobs": self._logprobs(piece),
            "finish_reason": piece.finish_reason,
        }

    def first(self, index: int) -> bytes:
        return self.chunk(Piece(index, self._echoes[index], [])) if self._echoes else b""

    def chunk(self, piece: Piece) -> bytes:
        if piece.finish_reason is None and not self._with_logprobs:  # nearly all of them
            return b'%b%d,"text":%b%b' % (self._before_index, piece.index, encode(piece.text), _AFTER_TEXT)
        return b"%b%d,\"text\":%b,\"logprobs\":%b,\"finish_reason\":%b}]}\n\n" % (
            self._before_index, piece.index, encode(piece.text), encode(self._logprobs(piece)),
            encode(piece.finish_reason),
        )  # fmt: skip

    def usage_chunk(self, usage: dict[str, object]) -> bytes:
        return event({**self._chunk_head, "choices": [], "usage": usage})

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        return completion_logprobs(piece.entries, self._tokenizer) if self._with_logprobs else None
