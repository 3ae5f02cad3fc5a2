"""``POST /v1/score`` and ``POST /v1/rerank``: a cross-encoder says how well texts go together.

Fields and answers are those of vLLM; reranking also takes Jina's and Cohere's documents.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.common.body import read_json
from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import ApiError, bad_request, refused_by_engine
from blade_llm.api.common.fields import parse
from blade_llm.api.generation.prompt_tokens import in_tokenizer_thread, too_long
from blade_llm.api.generation.requests import Priority
from blade_llm.api.generation.sse import run_unary
from blade_llm.engine.client import Generation
from blade_llm.engine.messages import GenerateRequest
from blade_llm.sampling.parameters import SamplingParams

MAX_PAIRS: Final = 2048
"""Most pairs of texts in one request."""
IGNORED: Final = {"user": "names the client's user; nothing is kept about users"}
_NO_TOKENS: Final = SamplingParams(max_tokens=1, temperature=0.0, seed=0)


class ScoringFields(msgspec.Struct, frozen=True, kw_only=True):
    """What both have."""

    model: str | None = None
    """One of the served names; the only model when left out."""
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    """Most tokens of a pair; the end of its second text is cut off. -1: as many as the context has room for."""
    use_activation: bool = True
    """Scores between 0 and 1, by the logistic function; else the model's logits."""
    priority: Priority = 0
    """Lower runs earlier."""
    cache_salt: str = ""
    """Requests with different salts never share cached prompt blocks."""


class ScoreRequest(ScoringFields, frozen=True, kw_only=True):
    """``POST /v1/score``"""

    text_1: str | list[str]
    """A text, or as many as ``text_2`` has."""
    text_2: str | list[str]
    """A text, or several."""


class Document(msgspec.Struct, frozen=True):
    """A document of a request to rerank, with its text alone."""

    text: str


class RerankRequest(ScoringFields, frozen=True, kw_only=True):
    """``POST /v1/rerank``"""

    query: str
    documents: list[str | Document]
    top_n: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Number of the best documents to return; all when left out or 0."""
    return_documents: bool = True
    """Results bring the documents' texts."""


async def score(context: ServerContext, request: Request) -> Response:
    """Score pairs of texts: one with one, one with each of several, or each with its counterpart."""
    context.require_service()
    fields = parse(await read_json(request, context.max_body_bytes), ScoreRequest, ignored=IGNORED, refused={})
    model = context.resolve_model(fields.model)
    first = [fields.text_1] if isinstance(fields.text_1, str) else fields.text_1
    second = [fields.text_2] if isinstance(fields.text_2, str) else fields.text_2
    if len(first) != 1 and len(first) != len(second):
        raise bad_request(
            f"text_1 has {len(first)} texts and text_2 {len(second)}; send one text_1, or as many as text_2", "text_1"
        )
    pairs = [(first[0] if len(first) == 1 else first[index], text) for index, text in enumerate(second)]

    def body(scores: list[float], tokens: int) -> dict[str, Any]:
        return {
            "id": f"score-{request.state.request_id}",
            "object": "list",
            "created": int(time.time()),
            "model": model,
            "data": [{"index": index, "object": "score", "score": each} for index, each in enumerate(scores)],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    return await _answer(context, request, fields, pairs, "text_2", body)


async def rerank(context: ServerContext, request: Request) -> Response:
    """Order documents by how well they answer a query, the best first."""
    context.require_service()
    fields = parse(await read_json(request, context.max_body_bytes), RerankRequest, ignored=IGNORED, refused={})
    model = context.resolve_model(fields.model)
    texts = [each if isinstance(each, str) else each.text for each in fields.documents]

    def body(scores: list[float], tokens: int) -> dict[str, Any]:
        best = sorted(range(len(scores)), key=lambda index: -scores[index])[: fields.top_n or None]
        results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in best]
        if fields.return_documents:
            results = [{**each, "document": {"text": texts[each["index"]]}} for each in results]
        return {
            "id": f"rerank-{request.state.request_id}",
            "model": model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "results": results,
        }

    return await _answer(context, request, fields, [(fields.query, text) for text in texts], "documents", body)


async def _answer(
    context: ServerContext, request: Request, fields: ScoringFields, pairs: list[tuple[str, str]], param: str, body: Any
) -> Response:
    """Score ``pairs``; ``body`` makes the response of the scores and the number of tokens."""
    if not pairs:
        raise bad_request(f"{param} must not be empty", param)
    if len(pairs) > MAX_PAIRS:
        raise bad_request(f"{param} has {len(pairs)} texts; send at most {MAX_PAIRS} in one request", param)
    room, keep = context.max_model_len, fields.truncate_prompt_tokens
    if keep == 0:
        raise bad_request("truncate_prompt_tokens must be at least 1, or -1", "truncate_prompt_tokens")
    limit = None if keep is None else room if keep == -1 else min(keep, room)
    tokenizer = context.model.tokenizer
    encoded: list[tuple[list[int], int]] = []
    for first, second in pairs:
        if len(first) + (len(second) if limit is None else 0) > room * tokenizer.longest_token:
            raise too_long(f"{len(first) + len(second)} characters", room, param)
        encoded.append(await in_tokenizer_thread(tokenizer.encode_pair, first, second, limit))
        if len(encoded[-1][0]) > (limit or room):
            raise too_long(f"{len(encoded[-1][0])} tokens", limit or room, param)
    context.require_service()
    generation = context.client.submit(
        [
            GenerateRequest(
                request_id=context.client.new_id(request.state.request_id),
                prompt_token_ids=token_ids,
                sampling=_NO_TOKENS,
                pooling=context.model.pooling,
                second_text=second_text,
                cache_salt=fields.cache_salt,
                priority=fields.priority,
                adapter=context.adapter_of(fields.model),
            )
            for token_ids, second_text in encoded
        ]
    )
    tokens = sum(len(token_ids) for token_ids, _ in encoded)
    return await run_unary(generation, request.receive, _respond(generation, fields, len(pairs), tokens, param, body))


async def _respond(
    generation: Generation, fields: ScoringFields, count: int, tokens: int, param: str, body: Any
) -> Response:
    scores: dict[int, float] = {}
    while len(scores) < count:
        for index, output in await generation.get():
            if output.error is not None:
                raise refused_by_engine(output.error) or bad_request(str(output.error), param)
            if output.embedding is None:
                raise ApiError(500, "the engine made no score", kind="server_error")
            logit = float(np.frombuffer(output.embedding, dtype="<f4")[0])
            scores[index] = _logistic(logit) if fields.use_activation else logit
        await asyncio.sleep(0)
    return Response(
        msgspec.json.encode(body([scores[index] for index in range(count)], tokens)), media_type="application/json"
    )


def _logistic(logit: float) -> float:
    """``1 / (1 + exp(-logit))`` without overflow."""
    return 1.0 / (1.0 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1.0 + math.exp(logit))
