"""The fields of requests that generate text, and the body of ``POST /v1/completions``.

None always means: not given. JSON types and single ranges stand in the annotations, so that the OpenAPI document and
the decoder say the same.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from blade_llm.api.generation.structured_outputs import StructureFields
from blade_llm.sampling.parameters import (
    MAX_ALLOWED_TOKENS,
    MAX_BAD_WORDS,
    MAX_LENGTH_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_TEMPERATURE,
)

MAX_TEXT: Final = 1024
"""Longest stop string, in characters."""
_MAX_BIASES: Final = 1024
_MAX_STOP_IDS: Final = 128
_MAX_WORD: Final = 256

_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
_Word = Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_WORD)]
_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=128)]
_RequestId = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern="^[A-Za-z0-9_.:/+=@-]*$")]
MAX_SEED: Final = 9_223_372_036_854_776_000
"""2^63 as JavaScript writes it, and with it OpenAI's specification; what is beyond 64 bits stands for the end of them.
msgspec has no such bounds."""
_Seed = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": -MAX_SEED, "maximum": MAX_SEED})]
Natural = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
_RepetitionPenalty = Annotated[float, msgspec.Meta(ge=1 / MAX_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)]
_LengthPenalty = Annotated[float, msgspec.Meta(ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
TopLogprobs = Annotated[int, msgspec.Meta(ge=0, le=20)]
Priority = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
_Biases = Annotated[
    dict[int, Annotated[float, msgspec.Meta(ge=-100, le=100)]],
    msgspec.Meta(max_length=_MAX_BIASES, extra_json_schema={"propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"}}),
]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    include_usage: bool = False
    """A last chunk without choices carries the usage; the others say ``"usage": null``."""
    continuous_usage_stats: bool = False
    """With ``include_usage``: every chunk carries the usage so far."""
    include_obfuscation: bool = False
    """OpenAI's padding against traffic analysis; chunks are never padded here."""


class SamplingFields(StructureFields, msgspec.Struct, frozen=True, kw_only=True):
    """What every request that generates text has."""

    model: str | None = None
    """One of the served names; the only model when left out."""
    stream: bool = False
    """Respond with server-sent events."""
    min_tokens: Natural = 0
    """End-of-sequence and stop token ids cannot come before."""
    temperature: Annotated[float, msgspec.Meta(ge=0, le=MAX_TEMPERATURE)] | None = None
    """0 is greedy. The model's own default when left out, as for top_p, top_k and repetition_penalty."""
    top_p: _Share | None = None
    """0, as the smallest: only the likeliest token."""
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    """0 or -1: off."""
    min_p: _Share = 0.0
    """Keeps tokens at least this many times as likely as the likeliest."""
    repetition_penalty: _RepetitionPenalty | None = None
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    logit_bias: _Biases = {}
    """Token id → what is added to its logit."""
    bad_words: Annotated[list[_Word], msgspec.Meta(max_length=MAX_BAD_WORDS)] = []
    """Words that the output may not have: the last token of one, with or without a space before it, is not sampled
    after the others."""
    allowed_token_ids: Annotated[list[_TokenId], msgspec.Meta(min_length=1, max_length=MAX_ALLOWED_TOKENS)] | None = (
        None
    )
    """Only these are sampled. Name an end-of-sequence id too, or the output ends by its length or a stop string."""
    seed: _Seed | None = None
    """Same seed, same output; the samples of one request differ all the same."""
    stop: _Text | Annotated[list[_Text], msgspec.Meta(max_length=16)] = []
    """Stop strings: at most 16 of at most 1,024 characters; empty ones are left out."""
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
    """Outputs for each prompt."""
    best_of: Annotated[int, msgspec.Meta(ge=0, le=128)] | None = None
    """Samples, of which the ``n`` of the highest mean log-probability are returned; in a beam search: its width."""
    use_beam_search: bool | None = None
    """Search for the likeliest outputs instead of sampling."""
    beam_width: _Count | None = None
    """Width of a beam search, which it requests; ``best_of``, else ``n``, when left out."""
    length_penalty: _LengthPenalty = 1.0
    """Beams are ranked by the sum of their log-probabilities divided by length to this power."""
    early_stopping: bool = False
    """End a beam search once it has enough complete outputs, not when none can be better any more."""
    max_tokens: Natural | None = None
    """Tokens to generate at most; 16 for completions, all that fits for chats when left out."""
    prompt_logprobs: TopLogprobs | None = None
    """Return each prompt token's log-probability and those of this number of most likely tokens."""
    return_tokens_as_token_ids: bool = False
    """Log-probabilities name tokens ``token_id:123``, which is unambiguous for those that are no text of their own."""
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    """Number of the prompt's last tokens to keep; -1: as many as the context has room for."""
    truncation_side: Literal["left", "right"] | None = None
    """``right``: ``truncate_prompt_tokens`` keeps the first tokens instead."""
    return_token_ids: bool = False
    """Return ``token_ids`` with each output, or piece of one, and once the ``prompt_token_ids``."""
    request_id: _RequestId | None = None
    """What the response's id ends with, in place of the header ``x-request-id``."""
    add_special_tokens: bool | None = None
    """Begin-of-sequence and the like, as the tokenizer has them; chat templates write them themselves."""


class CompletionRequest(GenerationFields, frozen=True, kw_only=True):
    """``POST /v1/completions``"""

    prompt: str | list[Any]
    """Text, token ids, or a list of either."""
    suffix: str = ""
    """Text after the output, for models that learned to fill in."""
    echo: bool = False
    """Begin the output with the prompt; with ``max_tokens`` 0 that is all."""
    logprobs: TopLogprobs | None = None
    """Return each token's log-probability and those of this number of most likely tokens."""
