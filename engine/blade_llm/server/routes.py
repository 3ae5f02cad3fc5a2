"""The public port's routes, one line each: the handler, what it reads and what it sends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api import chat, completions, embeddings, scoring, tokenize
from blade_llm.api.chat_request import ChatRequest
from blade_llm.api.common import response_types as types
from blade_llm.api.common.context import ServerContext
from blade_llm.api.generation.requests import CompletionRequest
from blade_llm.api.messages import route as messages
from blade_llm.api.messages.requests import CountTokensRequest, MessagesRequest
from blade_llm.api.messages.types import MessageObject, TokenCount
from blade_llm.api.responses import route as responses
from blade_llm.api.responses.requests import InputTokensRequest, ResponsesRequest
from blade_llm.api.responses.types import InputTokens, ResponseObject
from blade_llm.server import operations
from blade_protocol import paths

Handler: TypeAlias = Callable[[ServerContext, Request], Awaitable[Response]]


class Route(NamedTuple):
    """``response`` None: plain text; ``streams``: or server-sent events, if requested; ``errors``: beside the usual."""

    method: str
    path: str
    handler: Handler
    response: type[msgspec.Struct] | None
    body: type[msgspec.Struct] | None = None
    streams: bool = False
    errors: tuple[int, ...] = ()


ROUTES: Final = (
    Route("POST", paths.CHAT_COMPLETIONS, chat.chat_completions, types.ChatCompletion, ChatRequest, streams=True),
    Route("POST", paths.COMPLETIONS, completions.completions, types.Completion, CompletionRequest, streams=True),
    Route("POST", paths.RESPONSES, responses.create, ResponseObject, ResponsesRequest, streams=True),
    Route("POST", paths.INPUT_TOKENS, responses.count_input_tokens, InputTokens, InputTokensRequest),
    Route("POST", paths.MESSAGES, messages.create, MessageObject, MessagesRequest, streams=True),
    Route("POST", paths.COUNT_TOKENS, messages.count_tokens, TokenCount, CountTokensRequest),
    Route("POST", paths.EMBEDDINGS, embeddings.embeddings, types.EmbeddingList, embeddings.EmbeddingRequest),
    Route("POST", paths.SCORE, scoring.score, types.ScoreList, scoring.ScoreRequest),
    Route("POST", paths.SCORE_BARE, scoring.score, types.ScoreList, scoring.ScoreRequest),
    Route("POST", paths.RERANK, scoring.rerank, types.Ranking, scoring.RerankRequest),
    Route("POST", paths.RERANK_BARE, scoring.rerank, types.Ranking, scoring.RerankRequest),
    Route("POST", paths.RERANK_V2, scoring.rerank, types.Ranking, scoring.RerankRequest),
    Route("POST", paths.TOKENIZE, tokenize.tokenize, types.Tokens, tokenize.TokenizeRequest),
    Route("POST", paths.DETOKENIZE, tokenize.detokenize, types.Text, tokenize.DetokenizeRequest),
    Route("GET", paths.MODELS, operations.models, types.ModelList),
    Route("GET", paths.MODELS + "/{model}", operations.model, types.Model, errors=(404,)),
    Route("GET", paths.HEALTH, operations.health, types.Status, errors=(503,)),
    Route("GET", paths.READY, operations.health, types.Status, errors=(503,)),
    Route("GET", paths.PING, operations.health, types.Status, errors=(503,)),
    Route("POST", paths.PING, operations.health, types.Status, errors=(503,)),
    Route("GET", paths.LOAD, operations.load, types.ServerLoad),
    Route("GET", paths.LIVE, operations.live, types.Status, errors=(503,)),
    Route("GET", paths.METRICS, operations.metrics, None),
    Route("GET", paths.METRIC, operations.metrics, None),
    Route("GET", paths.VERSION, operations.version, types.Version),
)
