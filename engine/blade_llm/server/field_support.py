"""Fields that a request's body may hold beside those of its type: which are ignored and which refused."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from blade_llm.api.common.fields import IGNORED, REFUSED, Refusal
from blade_llm.api.embeddings import IGNORED as IGNORED_BY_EMBEDDINGS
from blade_llm.api.embeddings import EmbeddingRequest
from blade_llm.api.generation.requests import GenerationFields
from blade_llm.api.messages.requests import IGNORED as IGNORED_BY_MESSAGES
from blade_llm.api.messages.requests import IGNORED_BY_COUNT, CountTokensRequest, MessagesRequest
from blade_llm.api.messages.requests import REFUSED as REFUSED_BY_MESSAGES
from blade_llm.api.responses.requests import IGNORED as IGNORED_BY_RESPONSES
from blade_llm.api.responses.requests import IGNORED_BY_COUNT as IGNORED_BY_INPUT_TOKENS
from blade_llm.api.responses.requests import REFUSED as REFUSED_BY_RESPONSES
from blade_llm.api.responses.requests import InputTokensRequest, ResponsesRequest
from blade_llm.api.scoring import IGNORED as IGNORED_BY_SCORING
from blade_llm.api.scoring import ScoringFields


def ignored_by(body: type[msgspec.Struct]) -> Mapping[str, str]:
    """Field → why it changes nothing."""
    if issubclass(body, GenerationFields):
        return IGNORED
    if issubclass(body, ScoringFields):
        return IGNORED_BY_SCORING
    return {
        ResponsesRequest: IGNORED_BY_RESPONSES,
        InputTokensRequest: IGNORED_BY_INPUT_TOKENS,
        MessagesRequest: IGNORED_BY_MESSAGES,
        CountTokensRequest: IGNORED_BY_COUNT,
        EmbeddingRequest: IGNORED_BY_EMBEDDINGS,
    }.get(body, {})


def refused_by(body: type[msgspec.Struct]) -> Mapping[str, Refusal]:
    """Field → why it is not taken, and the values that are."""
    if issubclass(body, GenerationFields):
        return REFUSED
    return {
        ResponsesRequest: REFUSED_BY_RESPONSES,
        InputTokensRequest: REFUSED_BY_RESPONSES,
        MessagesRequest: REFUSED_BY_MESSAGES,
        CountTokensRequest: REFUSED_BY_MESSAGES,
    }.get(body, {})
