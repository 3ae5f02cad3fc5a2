"""``POST /v1/completions``: text or token ids in, ``text_completion`` objects out."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.common.body import read_json
from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import bad_request
from blade_llm.api.common.fields import parse
from blade_llm.api.completion_serializer import make_completion_serializer
from blade_llm.api.generation.generate import respond
from blade_llm.api.generation.logprobs import TokenNames
from blade_llm.api.generation.prompt import Prompt
from blade_llm.api.generation.prompt_tokens import completion_prompts, infill_prompts, truncated
from blade_llm.api.generation.requests import CompletionRequest
from blade_llm.api.generation.resumable import resumable, seeded
from blade_llm.api.generation.sampling import bad_word_sequences, check_allowed_tokens, check_length, sampling_params
from blade_llm.api.generation.search import search_of
from blade_llm.api.generation.structured_outputs import validated_structure
from blade_llm.api.tools.grammar import tag_writer
from blade_llm.text.infill import Infill, infill_of

DEFAULT_MAX_TOKENS: Final = 16
_MAX_STREAMED_ECHO: Final = 50_000
"""Log-probabilities."""


async def completions(context: ServerContext, request: Request) -> Response:
    """Serve one completion request. Raises :class:`ApiError`."""
    context.require_service()
    fields = seeded(parse(await read_json(request, context.max_body_bytes), CompletionRequest), request)
    model = context.resolve_model(fields.model)
    search = search_of(fields)
    infill = _infill(context, fields)
    structure, structure_field = await validated_structure(
        fields, context.structures, tag_writer(context.model.tokenizer)
    )
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
    only_prompt = fields.max_tokens == 0
    requested = 1 if only_prompt else fields.max_tokens
    room = limit - (requested or 1)
    field_names = {"structure": structure_field, **search.field_names}
    check_allowed_tokens(fields, len(found))
    bad_words = bad_word_sequences(fields, tokenizer)
    prompts = []
    for token_ids in found:
        token_ids = truncated(token_ids, fields.truncate_prompt_tokens, room, fields.truncation_side)
        sampling = sampling_params(
            fields,
            context.model.sampling_defaults,
            search,
            max_tokens=check_length(len(token_ids), requested, DEFAULT_MAX_TOKENS, limit, "prompt"),
            logprobs=fields.logprobs,
            vocab_size=vocab_size,
            prompt_logprobs=_prompt_logprobs(fields),
            end_ids=() if infill is None or fields.ignore_eos else infill.end_ids,
            structure=structure,
            bad_words=bad_words,
        )
        prompts.append(Prompt(token_ids, sampling, only_prompt, field_names=field_names))
    if fields.stream and fields.echo and fields.logprobs is not None:
        _check_streamed_echo(sum(len(prompt.token_ids) for prompt in prompts) * search.n, fields.logprobs)
    stream = resumable(
        request,
        fields,
        prompts,
        search,
        model=model,
        adapter=context.adapter_of(fields.model),
        vocab_size=vocab_size,
        stream=fields.stream,
    )
    serializer = await make_completion_serializer(
        f"cmpl-{fields.request_id or request.state.request_id}",
        model,
        TokenNames(tokenizer, by_id=fields.return_tokens_as_token_ids),
        prompts=[prompt.token_ids for prompt in prompts],
        n=search.n,
        echo=fields.echo,
        with_logprobs=fields.logprobs is not None,
        with_prompt_logprobs=fields.prompt_logprobs is not None,
        skip_special_tokens=fields.skip_special_tokens,
        created=None if stream is None else stream.created,
        with_token_ids=fields.return_token_ids,
    )
    return await respond(context, request, fields, prompts, serializer, search, "prompt", stream)


def _check_streamed_echo(tokens: int, logprobs: int) -> None:
    """A stream writes an echo in one event on the event loop; a whole response is written in a thread."""
    if tokens * (1 + logprobs) > _MAX_STREAMED_ECHO:
        message = f"echo with logprobs of {tokens} prompt tokens cannot be streamed; send stream: false, or fewer"
        raise bad_request(message, "stream")


def _prompt_logprobs(fields: CompletionRequest) -> int | None:
    """Requested as such, or because ``echo`` puts the prompt into the response's log-probabilities."""
    if fields.prompt_logprobs is not None and fields.stream:
        raise bad_request("prompt_logprobs cannot be streamed; send stream: false, or echo", "prompt_logprobs")
    echoed = fields.logprobs if fields.echo else None
    requested = [count for count in (fields.prompt_logprobs, echoed) if count is not None]
    return max(requested) if requested else None


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
