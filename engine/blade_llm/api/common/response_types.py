"""Types of responses, for the OpenAPI document. The responses themselves are written by hand, for speed."""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "tool_calls", "abort"]


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int | msgspec.UnsetType = msgspec.UNSET
    """Of a model that thinks."""
    accepted_prediction_tokens: int | msgspec.UnsetType = msgspec.UNSET
    """With speculative decoding, like the next."""
    rejected_prediction_tokens: int | msgspec.UnsetType = msgspec.UNSET


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprob] | None
    refusal: None


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str
    """JSON, as the model wrote it; incomplete where the answer was cut short."""


class ToolCall(msgspec.Struct, tag_field="type", tag="function"):
    id: str
    function: CalledFunction


class CalledTool(msgspec.Struct):
    name: str
    input: str


class CustomToolCall(msgspec.Struct, tag_field="type", tag="custom"):
    """Of a freeform tool."""

    id: str
    custom: CalledTool


class ChatMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | msgspec.UnsetType | None = msgspec.UNSET
    tool_calls: list[ToolCall | CustomToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None
    """The stop string or stop token id that ended it."""
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class PromptLogprob(msgspec.Struct):
    logprob: float
    rank: int | None
    """Null where it is not known: the token is none of the most likely ones."""
    decoded_token: str


PromptLogprobList = list[dict[str, PromptLogprob] | None]


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobList | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_text: str | msgspec.UnsetType = msgspec.UNSET


class CompletionLogprobLists(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobLists | None
    finish_reason: FinishReason
    stop_reason: int | str | None
    prompt_logprobs: PromptLogprobList | msgspec.UnsetType = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage


class Embedding(msgspec.Struct):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Score(msgspec.Struct):
    index: int
    object: Literal["score"]
    score: float


class ScoreList(msgspec.Struct):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: EmbeddingUsage


class RankedDocument(msgspec.Struct):
    text: str


class RankedResult(msgspec.Struct):
    index: int
    relevance_score: float
    document: RankedDocument | msgspec.UnsetType = msgspec.UNSET


class Ranking(msgspec.Struct):
    id: str
    model: str
    usage: EmbeddingUsage
    results: list[RankedResult]


class Tokens(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str | None] | None


class Text(msgspec.Struct):
    prompt: str


class Model(msgspec.Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(msgspec.Struct):
    object: Literal["list"]
    data: list[Model]


class Status(msgspec.Struct):
    status: Literal["ok"]


class ServerLoad(msgspec.Struct):
    server_load: int


class Version(msgspec.Struct):
    version: str
