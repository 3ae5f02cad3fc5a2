"""``POST /v1/completions``: text or token ids go on as they are, answers as ``text_completion`` objects."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.body import read_json
from blade_llm.api.completion_shape import completion_shape
from blade_llm.api.context import ServerContext
from blade_llm.api.errors import bad_request
from blade_llm.api.fields import parse
from blade_llm.api.generate import Prompt, answer
from blade_llm.api.logprobs import TokenNames
from blade_llm.api.prompts import completion_prompts, infill_prompts, truncated
from blade_llm.api.requests import CompletionRequest, check_length, sampling_params
from blade_llm.api.resumable import resumable, seeded
from blade_llm.api.search import search_of
from blade_llm.api.structured import checked_structure
from blade_llm.text.infill import Infill, infill_of

DEFAULT_MAX_TOKENS: Final = 16
_MAX_STREAMED_ECHO: Final = 50_000
"""Log-probabilities."""


async def completions(context: ServerContext, request: Request) -> Response:
    """Answer one completion request. Raises :class:`ApiError`."""
    context.require_service()
    fields = seeded(parse(await read_json(request), CompletionRequest), request)
    model = context.resolve_model(fields.model)
    search = search_of(fields)
    infill = _infill(context, fields)
    structure, asked_in = await checked_structure(fields, context.structures)
    tokenizer, vocab_size = context.model.tokenizer, context.model.vocab_size
    special = fields.add_special_tokens is not False
    limit = context.max_model_len
    if infill is None:
        found = await completion_prompts(
            fields.prompt,
            tokenizer,
            vocab_size,
            n=search.samples,
            add_special_tokens=special,
            limit=limit if fields.truncate_prompt_tokens is None else None,
        )
    else:
        found = await infill_prompts(
            infill,
            fields.prompt,
            fields.suffix,
            tokenizer,
            n=search.samples,
            add_special_tokens=special,
            limit=limit,
        )
    only_prompt = fields.echo and fields.max_tokens == 0
    asked = 1 if only_prompt else fields.max_tokens
    room = limit - (asked or 1)
    asked_by = {"structure": asked_in, "beam_width": search.width_field}
    prompts = []
    for token_ids in found:
        token_ids = truncated(token_ids, fields.truncate_prompt_tokens, room)
        sampling = sampling_params(
            fields,
            context.model.sampling_defaults,
            search,
            max_tokens=check_length(len(token_ids), asked, DEFAULT_MAX_TOKENS, limit, "prompt"),
            logprobs=fields.logprobs,
            vocab_size=vocab_size,
            prompt_logprobs=_prompt_logprobs(fields),
            end_ids=() if infill is None or fields.ignore_eos else infill.end_ids,
            structure=structure,
        )
        prompts.append(Prompt(token_ids, sampling, only_prompt, asked_by=asked_by))
    if fields.stream and fields.echo and fields.logprobs is not None:
        _check_streamed_echo(sum(len(prompt.token_ids) for prompt in prompts) * search.n, fields.logprobs)
    stream = resumable(request, fields, prompts, search, model=model, vocab_size=vocab_size, stream=fields.stream)
    shape = await completion_shape(
        f"cmpl-{request.state.request_id}",
        model,
        TokenNames(tokenizer, by_id=fields.return_tokens_as_token_ids),
        prompts=[prompt.token_ids for prompt in prompts],
        n=search.n,
        echo=fields.echo,
        with_logprobs=fields.logprobs is not None,
        with_prompt_logprobs=fields.prompt_logprobs is not None,
        skip_special_tokens=fields.skip_special_tokens,
        created=None if stream is None else stream.created,
    )
    return await answer(context, request, fields, prompts, shape, search, "prompt", stream)


def _check_streamed_echo(tokens: int, logprobs: int) -> None:
    """A stream writes an echo in one event, where other requests' events wait; a whole answer is written elsewhere."""
    if tokens * (1 + logprobs) > _MAX_STREAMED_ECHO:
        message = f"echo with logprobs of {tokens} prompt tokens cannot be streamed; send stream: false, or fewer"
        raise bad_request(message, "stream")


def _prompt_logprobs(fields: CompletionRequest) -> int | None:
    """Asked for as such, or because ``echo`` puts the prompt into the answer's log-probabilities."""
    if fields.prompt_logprobs is not None and fields.stream:
        raise bad_request("prompt_logprobs cannot be streamed; send stream: false, or echo", "prompt_logprobs")
    echoed = fields.logprobs if fields.echo else None
    asked = [count for count in (fields.prompt_logprobs, echoed) if count is not None]
    return max(asked) if asked else None


def _infill(context: ServerContext, fields: CompletionRequest) -> Infill | None:
    if not fields.suffix:
        return None
    if fields.echo:
        raise bad_request("suffix with echo is not possible: the answer stands between two texts", "suffix")
    if fields.truncate_prompt_tokens is not None:  # would cut off the mark before the first text
        raise bad_request("suffix with truncate_prompt_tokens is not possible; shorten the prompt", "suffix")
    infill = infill_of(context.model.tokenizer)
    if infill is None:
        raise bad_request("this model cannot fill in: its tokenizer has no tokens for it; leave suffix out", "suffix")
    return infill
