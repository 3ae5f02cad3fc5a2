"""The public port's routes, one line each: what answers, what it reads and what it sends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api import chat, completions, embeddings, operations, tokenize
from blade_llm.api import response_types as answers
from blade_llm.api.context import ServerContext
from blade_llm.api.requests import ChatRequest, CompletionRequest
from blade_llm.api.responses import route as responses
from blade_llm.api.responses.requests import ResponsesRequest
from blade_llm.api.responses.types import ResponseObject
from blade_protocol import paths

Handler: TypeAlias = Callable[[ServerContext, Request], Awaitable[Response]]


class Route(NamedTuple):
    """``answer`` None: plain text; ``streams``: or server-sent events, if asked for; ``errors``: beside the usual."""

    method: str
    path: str
    handler: Handler
    answer: type[msgspec.Struct] | None
    body: type[msgspec.Struct] | None = None
    streams: bool = False
    errors: tuple[int, ...] = ()


ROUTES: Final = (
    Route("POST", paths.CHAT_COMPLETIONS, chat.chat_completions, answers.ChatCompletion, ChatRequest, streams=True),
    Route("POST", paths.COMPLETIONS, completions.completions, answers.Completion, CompletionRequest, streams=True),
    Route("POST", paths.RESPONSES, responses.create, ResponseObject, ResponsesRequest, streams=True),
    Route("POST", paths.EMBEDDINGS, embeddings.embeddings, answers.EmbeddingList, embeddings.EmbeddingRequest),
    Route("POST", paths.TOKENIZE, tokenize.tokenize, answers.Tokens, tokenize.TokenizeRequest),
    Route("POST", paths.DETOKENIZE, tokenize.detokenize, answers.Text, tokenize.DetokenizeRequest),
    Route("GET", paths.MODELS, operations.models, answers.ModelList),
    Route("GET", paths.MODELS + "/{model}", operations.model, answers.Model, errors=(404,)),
    Route("GET", paths.HEALTH, operations.health, answers.Status, errors=(503,)),
    Route("GET", paths.LIVE, operations.live, answers.Status, errors=(503,)),
    Route("GET", paths.METRICS, operations.metrics, None),
    Route("GET", paths.METRIC, operations.metrics, None),
    Route("GET", paths.VERSION, operations.version, answers.Version),
)
