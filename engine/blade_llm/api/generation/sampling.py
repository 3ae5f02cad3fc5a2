"""From a request's fields to the engine's sampling parameters."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any, Final

from blade_llm.api.common.errors import bad_request, context_exceeded
from blade_llm.api.common.response_notes import note_left_out
from blade_llm.api.common.served_model import SamplingDefaults
from blade_llm.api.generation.requests import GenerationFields
from blade_llm.api.generation.search import Search
from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.parameters import MAX_ALLOWED_TOKENS, MAX_BAD_WORD_CHARACTERS, SamplingParams
from blade_llm.sampling.restrictions import word_sequences
from blade_llm.text.errors import UnreadableTextError
from blade_llm.text.tokenizer import Tokenizer

_SMALLEST_TOP_P: Final = 1e-30
"""What 0 stands for, which OpenAI's specification has for the smallest share: at least one token is kept always."""
_MOST_ALLOWED_OF_PROMPTS: Final = 16 * MAX_ALLOWED_TOKENS
"""Allowed tokens, times the prompts: each prompt takes a list of its own to the engine."""


def sampling_params(
    fields: GenerationFields,
    defaults: SamplingDefaults,
    search: Search,
    *,
    max_tokens: int,
    logprobs: int | None,
    vocab_size: int,
    prompt_logprobs: int | None = None,
    end_ids: tuple[int, ...] = (),
    structure: GrammarSpec | None = None,
    bad_words: tuple[tuple[int, ...], ...] = (),
) -> SamplingParams:
    """Validated parameters with the seed filled in. Raises :class:`ApiError` 400 that names the field.

    Args:
        end_ids: further tokens that end an output.
        bad_words: see :func:`bad_word_sequences`.
    """

    if search.greedy:
        defaults = SamplingDefaults()  # the model's own are for sampling, and a search refuses them

    def pick(name: str) -> Any:
        value = getattr(fields, name)
        return getattr(defaults, name) if value is None else value

    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=fields.min_tokens,
        temperature=0.0 if search.greedy else pick("temperature"),
        top_p=1.0 if search.greedy else pick("top_p") or _SMALLEST_TOP_P,
        top_k=0 if search.greedy else pick("top_k"),
        min_p=fields.min_p,
        repetition_penalty=pick("repetition_penalty"),
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        seed=secrets.randbits(63) if fields.seed is None else fields.seed,
        stop=_stop_strings(fields),
        stop_token_ids=(*fields.stop_token_ids, *end_ids),
        ignore_eos=fields.ignore_eos,
        include_stop_str_in_output=fields.include_stop_str_in_output,
        skip_special_tokens=fields.skip_special_tokens,
        logprobs=0 if search.ranked and logprobs is None else logprobs,
        prompt_logprobs=prompt_logprobs,
        logit_bias=fields.logit_bias,
        bad_words_token_ids=bad_words,
        allowed_token_ids=None if fields.allowed_token_ids is None else tuple(fields.allowed_token_ids),
        beam_width=search.beam_width,
        length_penalty=fields.length_penalty,
        early_stopping=fields.early_stopping,
        grammar_spec=structure,
    )
    if problem := params.problem():
        name, advice = problem
        if name == "logit_bias" and not params.beam_width:
            values = (f"{key}: {bias:g}" for key, bias in params.logit_bias.items() if key < 0 or abs(bias) > 100)
            if value := next(values, ""):
                advice = f"{advice}, not {value}"
        if name == "beam_width":
            name = search.width_field if structure is None else _beam_field(fields)
        raise bad_request(f"{name} {advice}", name)
    of_fields = (
        ("stop_token_ids", params.stop_token_ids),
        ("logit_bias", params.logit_bias),
        ("allowed_token_ids", params.allowed_token_ids or ()),
    )
    for name, ids in of_fields:
        if wrong := [token_id for token_id in ids if not 0 <= token_id < vocab_size]:
            raise bad_request(f"{name}: {wrong[0]} is not between 0 and {vocab_size - 1}", name)
    return params


def _stop_strings(fields: GenerationFields) -> tuple[str, ...]:
    """Without the empty ones, which stand before every token and are meant to stop at none."""
    given = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop)
    if not all(given):
        note_left_out(["stop"])
    return tuple(filter(None, given))


def check_allowed_tokens(fields: GenerationFields, prompts: int) -> None:
    """Raise :class:`ApiError` 400 for more allowed tokens than so many prompts may have."""
    count = len(fields.allowed_token_ids or ())
    if prompts * count > _MOST_ALLOWED_OF_PROMPTS:
        message = f"allowed_token_ids has {count} ids, too many for {prompts} prompts at once; send fewer prompts"
        raise bad_request(message, "allowed_token_ids")


def bad_word_sequences(fields: GenerationFields, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The token sequences that the output may not complete. Raises :class:`ApiError` 400."""
    words = fields.bad_words
    if not words:
        return ()
    characters = sum(map(len, words))
    if characters > MAX_BAD_WORD_CHARACTERS:
        raise bad_request(
            f"bad_words has {characters} characters, but may have {MAX_BAD_WORD_CHARACTERS} together; give fewer or "
            "shorter words",
            "bad_words",
        )
    try:
        return word_sequences(words, partial(tokenizer.encode, add_special_tokens=False))
    except UnreadableTextError as error:
        raise bad_request(f"bad_words: {error}", "bad_words") from None


def _beam_field(fields: GenerationFields) -> str:
    return "use_beam_search" if fields.use_beam_search else "beam_width"


def check_length(
    prompt_tokens: int, requested: int | None, default: int | None, limit: int, param: str, name: str = "max_tokens"
) -> int:
    """The number of tokens to generate: ``requested``, else ``default`` (or all that fits) cut to what is left.

    Args:
        param: the field the prompt came in.
        name: the field of ``requested``.

    Raises :class:`ApiError` 400 with the numbers when the prompt, or prompt and ``requested``, exceed ``limit``.
    """
    left = limit - prompt_tokens
    if requested is not None and requested < 1:
        raise bad_request(f"{name} must be at least 1, not {requested}", name)
    if left < 1:
        however = (
            f"your {param} resulted in {prompt_tokens} tokens, and an output takes at least one. Please reduce the "
            f"length of the {param} to at most {limit - 1} tokens"
        )
        raise context_exceeded(limit, however, param)
    if requested is None:
        return left if default is None else min(default, left)
    if requested > left:
        however = (
            f"you requested {prompt_tokens + requested} tokens ({prompt_tokens} in the {param}, {requested} in the "
            f"completion): {name} asks for {requested}, and at most {left} are left. Please reduce the length of the "
            f"{param} or completion"
        )
        raise context_exceeded(limit, however, name if requested >= limit else param)
    return requested
