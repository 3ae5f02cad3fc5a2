"""The bodies of ``/v1/chat/completions`` and ``/v1/completions``, and the sampling parameters they ask for."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

import msgspec

from blade_llm.api.errors import bad_request
from blade_llm.api.served_model import SamplingDefaults
from blade_llm.api.tools.requests import Tool, ToolChoice
from blade_llm.sampling.parameters import SamplingParams

_Count = Annotated[int, msgspec.Meta(ge=1, le=128)]
_Priority = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool = False
    """A last chunk without choices carries the usage."""
    include_obfuscation: bool = False
    """OpenAI's padding against traffic analysis; chunks are never padded here."""


class GenerationFields(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds of requests share. None: the server's default."""

    model: str | None = None
    """A name the server answers to; the only model when left out."""
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: _Count = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: str | list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    priority: _Priority = 0
    cache_salt: str = ""


class ChatRequest(GenerationFields, frozen=True, kw_only=True):
    """``POST /v1/chat/completions``"""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    """Newer name of ``max_tokens``; wins over it."""
    logprobs: bool = False
    top_logprobs: int | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = {}
    """Further arguments for the chat template, e.g. ``{"enable_thinking": false}``."""
    tools: list[Tool] = []
    """Functions the model may call."""
    tool_choice: ToolChoice | None = None
    """Whether it may, or must, or which one; ``auto`` when left out."""
    parallel_tool_calls: bool = True
    """An answer may hold several calls."""
    include_reasoning: bool = True
    """Show the reasoning of a model that thinks."""

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionRequest(GenerationFields, frozen=True, kw_only=True):
    """``POST /v1/completions``"""

    prompt: str | list[Any]
    """Text, token ids, or a list of either."""
    echo: bool = False
    logprobs: int | None = None


def sampling_params(
    fields: GenerationFields, defaults: SamplingDefaults, *, max_tokens: int, logprobs: int | None, vocab_size: int
) -> SamplingParams:
    """Validated parameters with the seed filled in. Raises :class:`ApiError` 400 that names the field."""

    def pick(name: str) -> Any:
        value = getattr(fields, name)
        return getattr(defaults, name) if value is None else value

    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=fields.min_tokens,
        temperature=pick("temperature"),
        top_p=pick("top_p"),
        top_k=pick("top_k"),
        repetition_penalty=pick("repetition_penalty"),
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        seed=secrets.randbits(63) if fields.seed is None else fields.seed,
        stop=(fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop),
        stop_token_ids=tuple(fields.stop_token_ids),
        ignore_eos=fields.ignore_eos,
        include_stop_str_in_output=fields.include_stop_str_in_output,
        skip_special_tokens=fields.skip_special_tokens,
        logprobs=logprobs,
    )
    if problem := params.problem():
        name, advice = problem
        raise bad_request(f"{name} {advice}", name)
    if wrong := [token_id for token_id in params.stop_token_ids if not 0 <= token_id < vocab_size]:
        raise bad_request(f"stop_token_ids: {wrong[0]} is not between 0 and {vocab_size - 1}", "stop_token_ids")
    return params


def check_length(prompt_tokens: int, asked: int | None, default: int | None, limit: int, param: str) -> int:
    """The number of tokens to generate: ``asked``, else ``default`` (or all that fits) cut to what is left.

    Raises :class:`ApiError` 400 with the numbers when the prompt, or prompt and ``asked``, exceed ``limit``.
    """
    left = limit - prompt_tokens
    if asked is not None and asked < 1:
        raise bad_request(f"max_tokens must be at least 1, not {asked}", "max_tokens")
    if left < 1:
        message = (
            f"the prompt has {prompt_tokens} tokens; the context of {limit} tokens (--max_model_len) "
            f"leaves room for prompts of at most {limit - 1}: shorten it"
        )
        raise bad_request(message, param, "context_length_exceeded")
    if asked is None:
        return left if default is None else min(default, left)
    if asked > left:
        message = (
            f"the prompt has {prompt_tokens} tokens and max_tokens asks for {asked}: together {prompt_tokens + asked}, "
            f"more than the context of {limit} tokens (--max_model_len); shorten the prompt or ask for at most {left}"
        )
        raise bad_request(message, param, "context_length_exceeded")
    return asked
