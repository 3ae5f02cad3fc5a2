"""The bodies of ``/v1/chat/completions`` and ``/v1/completions``, and the sampling parameters they ask for.

None always means: not given. JSON types and single ranges stand in the annotations, so that the OpenAPI document and
the decoder say the same.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Final

import msgspec

from blade_llm.api.errors import bad_request
from blade_llm.api.search import Search
from blade_llm.api.served_model import SamplingDefaults
from blade_llm.api.structured import StructureFields
from blade_llm.api.tools.requests import Tool, ToolChoice
from blade_llm.sampling.parameters import (
    MAX_LENGTH_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_TEMPERATURE,
    SamplingParams,
)
from blade_llm.sampling.structure import Structure

MAX_TEXT: Final = 1024
"""Characters of one stop string."""
_MAX_BIASES: Final = 1024
_MAX_STOP_IDS: Final = 128

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]
_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=128)]
_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
_RepetitionPenalty = Annotated[float, msgspec.Meta(ge=1 / MAX_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)]
_LengthPenalty = Annotated[float, msgspec.Meta(ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_TopLogprobs = Annotated[int, msgspec.Meta(ge=0, le=20)]
Priority = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
_Biases = Annotated[
    dict[int, Annotated[float, msgspec.Meta(ge=-100, le=100)]],
    msgspec.Meta(max_length=_MAX_BIASES, extra_json_schema={"propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"}}),
]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool = False
    """A last chunk without choices carries the usage; the others say ``"usage": null``."""
    continuous_usage_stats: bool = False
    """With ``include_usage``: every chunk carries the usage so far."""
    include_obfuscation: bool = False
    """OpenAI's padding against traffic analysis; chunks are never padded here."""


class SamplingFields(StructureFields, msgspec.Struct, frozen=True, kw_only=True):
    """What every request that generates text has."""

    model: str | None = None
    """A name the server answers to; the only model when left out."""
    stream: bool = False
    """Answer with server-sent events."""
    min_tokens: _Natural = 0
    """End-of-sequence and stop token ids cannot come before."""
    temperature: Annotated[float, msgspec.Meta(ge=0, le=MAX_TEMPERATURE)] | None = None
    """0 is greedy. The model's own default when left out, as for top_p, top_k and repetition_penalty."""
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    """0 or -1: off."""
    min_p: _Share = 0.0
    """Keeps tokens at least this many times as likely as the likeliest."""
    repetition_penalty: _RepetitionPenalty | None = None
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    logit_bias: _Biases = {}
    """Token id → what is added to its logit."""
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    """Same seed, same answer; the samples of one request differ all the same."""
    stop: _Text | Annotated[list[_Text], msgspec.Meta(max_length=16)] = []
    """At most 16 texts of at most 1,024 characters."""
    stop_token_ids: Annotated[list[_TokenId], msgspec.Meta(max_length=_MAX_STOP_IDS)] = []
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    priority: Priority = 0
    """Lower runs earlier."""
    cache_salt: str = ""
    """Requests with different salts never share cached prompt blocks."""


class GenerationFields(SamplingFields, msgspec.Struct, frozen=True, kw_only=True):
    """What chats and completions share beyond that."""

    stream_options: StreamOptions | None = None
    n: _Count = 1
    """Answers to each prompt."""
    best_of: _Count | None = None
    """Draw so many, answer with the ``n`` of the highest mean log-probability; with a beam search: its width."""
    use_beam_search: bool | None = None
    """Search for the likeliest answers in place of drawing them."""
    beam_width: _Count | None = None
    """Of a beam search, which it asks for; ``best_of``, else ``n``, when left out."""
    length_penalty: _LengthPenalty = 1.0
    """Beams are ranked by the sum of their log-probabilities divided by length to this power."""
    early_stopping: bool = False
    """End a beam search once it has enough complete answers, not when none can be better any more."""
    max_tokens: _Natural | None = None
    """Tokens to generate at most; 16 for completions, all that fits for chats when left out."""
    prompt_logprobs: _TopLogprobs | None = None
    """Answer also with each prompt token's log-probability and those of so many most likely ones."""
    return_tokens_as_token_ids: bool = False
    """Log-probabilities name tokens ``token_id:123``, which tells apart those that are no text of their own."""
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    """Keep so many of the prompt's last tokens; -1: as many as the context has room for."""
    add_special_tokens: bool | None = None
    """Begin-of-sequence and the like, as the tokenizer has them; chat templates write them themselves."""


class ChatRequest(GenerationFields, frozen=True, kw_only=True):
    """``POST /v1/chat/completions``"""

    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    """Texts, or lists of text parts."""
    max_completion_tokens: _Natural | None = None
    """Newer name of ``max_tokens``; wins over it."""
    logprobs: bool = False
    """Tell each token's log-probability."""
    top_logprobs: _TopLogprobs | None = None
    """And those of so many most likely ones."""
    add_generation_prompt: bool | None = None
    """Let the template begin the answer; true unless ``continue_final_message``."""
    continue_final_message: bool = False
    """Go on within the last message."""
    resume_response: str = ""
    """What the answer has said already: put after the prompt, not repeated."""
    chat_template: str | None = None
    """In place of the model's."""
    chat_template_kwargs: dict[str, Any] = {}
    """Further arguments for the chat template, e.g. ``{"enable_thinking": false}``."""
    documents: list[dict[str, str]] = []
    """For templates that know of documents: ``{"title": …, "text": …}``."""
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
    suffix: str = ""
    """What follows the answer, for models that learned to fill in."""
    echo: bool = False
    """Begin the answer with the prompt; with ``max_tokens`` 0 that is all."""
    logprobs: _TopLogprobs | None = None
    """Tell each token's log-probability and those of so many most likely ones."""


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
    structure: Structure | None = None,
) -> SamplingParams:
    """Validated parameters with the seed filled in. Raises :class:`ApiError` 400 that names the field.

    Args:
        end_ids: further tokens that end an answer.
    """

    if search.greedy:
        defaults = SamplingDefaults()  # the model's own are for draws, and a search refuses them

    def pick(name: str) -> Any:
        value = getattr(fields, name)
        return getattr(defaults, name) if value is None else value

    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=fields.min_tokens,
        temperature=0.0 if search.greedy else pick("temperature"),
        top_p=1.0 if search.greedy else pick("top_p"),
        top_k=0 if search.greedy else pick("top_k"),
        min_p=fields.min_p,
        repetition_penalty=pick("repetition_penalty"),
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        seed=secrets.randbits(63) if fields.seed is None else fields.seed,
        stop=(fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop),
        stop_token_ids=(*fields.stop_token_ids, *end_ids),
        ignore_eos=fields.ignore_eos,
        include_stop_str_in_output=fields.include_stop_str_in_output,
        skip_special_tokens=fields.skip_special_tokens,
        logprobs=0 if search.ranked and logprobs is None else logprobs,
        prompt_logprobs=prompt_logprobs,
        logit_bias=fields.logit_bias,
        beam_width=search.beam_width,
        length_penalty=fields.length_penalty,
        early_stopping=fields.early_stopping,
        structure=structure,
    )
    if problem := params.problem():
        name, advice = problem
        if name == "beam_width":
            name = search.width_field if structure is None else _asks_for_beams(fields)
        raise bad_request(f"{name} {advice}", name)
    for name, ids in (("stop_token_ids", params.stop_token_ids), ("logit_bias", params.logit_bias)):
        if wrong := [token_id for token_id in ids if not 0 <= token_id < vocab_size]:
            raise bad_request(f"{name}: {wrong[0]} is not between 0 and {vocab_size - 1}", name)
    return params


def _asks_for_beams(fields: GenerationFields) -> str:
    return "use_beam_search" if fields.use_beam_search else "beam_width"


def check_length(
    prompt_tokens: int, asked: int | None, default: int | None, limit: int, param: str, name: str = "max_tokens"
) -> int:
    """The number of tokens to generate: ``asked``, else ``default`` (or all that fits) cut to what is left.

    Args:
        param: the field the prompt came in.
        name: the field that ``asked`` is of.

    Raises :class:`ApiError` 400 with the numbers when the prompt, or prompt and ``asked``, exceed ``limit``.
    """
    left = limit - prompt_tokens
    if asked is not None and asked < 1:
        raise bad_request(f"{name} must be at least 1, not {asked}", name)
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
            f"the prompt has {prompt_tokens} tokens and {name} asks for {asked}: together {prompt_tokens + asked}, "
            f"more than the context of {limit} tokens (--max_model_len); shorten the prompt or ask for at most {left}"
        )
        raise bad_request(message, name if asked >= limit else param, "context_length_exceeded")
    return asked
