"""``POST /v1/embeddings``: texts or token ids become vectors, the pooled hidden states of the model's last layer."""

from __future__ import annotations

import asyncio
import base64
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.common.body import read_json
from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import ApiError, bad_request, context_exceeded, refused_by_engine
from blade_llm.api.common.fields import parse
from blade_llm.api.common.pooling import Pooling
from blade_llm.api.generation.prompt_tokens import completion_prompts, truncated
from blade_llm.api.generation.requests import Priority
from blade_llm.api.generation.sse import run_unary
from blade_llm.engine.client import Generation
from blade_llm.engine.messages import GenerateRequest, RequestOutput
from blade_llm.sampling.parameters import SamplingParams

MAX_INPUTS: Final = 2048
"""Most inputs in one request, as at OpenAI."""
IGNORED: Final = {"user": "names the client's user; nothing is kept about users"}
_NO_TOKENS: Final = SamplingParams(max_tokens=1, temperature=0.0, seed=0)


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /v1/embeddings``"""

    input: str | list[Any]
    """Text, token ids, or a list of either."""
    model: str | None = None
    """One of the served names; the only model when left out."""
    encoding_format: Literal["float", "base64"] = "float"
    """``base64``: 32-bit floats, little-endian."""
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Number of leading dimensions to keep; the vector is normalised afterwards."""
    pooling: Pooling | None = None
    """Pooling of the hidden states: the last token's, the mean of all, or the first token's; the server's default
    when left out."""
    normalize: bool = True
    """Scale vectors to length 1."""
    add_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    """Number of an input's last tokens to keep; -1: as many as the context has room for."""
    priority: Priority = 0
    """Lower runs earlier."""
    cache_salt: str = ""
    """Requests with different salts never share cached prompt blocks."""


async def embeddings(context: ServerContext, request: Request) -> Response:
    """Turn texts into vectors."""
    context.require_service()
    fields = parse(await read_json(request, context.max_body_bytes), EmbeddingRequest, ignored=IGNORED, refused={})
    model = context.resolve_model(fields.model)
    _check_dimensions(fields.dimensions, context.hidden_size)
    room = context.max_model_len
    found = await completion_prompts(
        fields.input,
        context.model.tokenizer,
        context.model.vocab_size,
        add_special_tokens=fields.add_special_tokens,
        param="input",
        most=MAX_INPUTS,
        limit=room if fields.truncate_prompt_tokens is None else None,
    )
    prompts = [truncated(token_ids, fields.truncate_prompt_tokens, room) for token_ids in found]
    if too_long := [len(token_ids) for token_ids in prompts if len(token_ids) > room]:
        however = f"your input has {too_long[0]} tokens. Please reduce the length of the input, or have it truncated"
        raise context_exceeded(room, however, "input")
    context.require_service()
    generation = context.client.submit(
        [
            GenerateRequest(
                request_id=context.client.new_id(request.state.request_id),
                prompt_token_ids=token_ids,
                sampling=_NO_TOKENS,
                pooling=fields.pooling or context.model.pooling,
                cache_salt=fields.cache_salt,
                priority=fields.priority,
                adapter=context.adapter_of(fields.model),
            )
            for token_ids in prompts
        ]
    )
    tokens = sum(len(token_ids) for token_ids in prompts)
    return await run_unary(generation, request.receive, _respond(generation, fields, model, len(prompts), tokens))


async def _respond(generation: Generation, fields: EmbeddingRequest, model: str, count: int, tokens: int) -> Response:
    vectors: dict[int, msgspec.Raw] = {}
    while len(vectors) < count:
        for index, output in await generation.get():
            vectors[index] = _vector(output, fields)
            await asyncio.sleep(0)  # many vectors come at once, and writing one takes long
    body = {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": vectors[index]} for index in range(count)],
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return Response(msgspec.json.encode(body), media_type="application/json")


def _check_dimensions(dimensions: int | None, hidden_size: int) -> None:
    if dimensions is not None and 0 < hidden_size < dimensions:
        raise bad_request(f"dimensions must be at most {hidden_size}, the model's hidden size", "dimensions")


def _vector(output: RequestOutput, fields: EmbeddingRequest) -> msgspec.Raw:
    """The vector as JSON, a fourth of the memory that its numbers take as objects."""
    if output.error is not None:
        raise refused_by_engine(output.error) or bad_request(str(output.error), "input")
    if output.embedding is None:
        raise ApiError(500, "the engine made no embedding", kind="server_error")
    vector = np.frombuffer(output.embedding, dtype="<f4")
    if fields.dimensions is not None:
        _check_dimensions(fields.dimensions, len(vector))
        vector = vector[: fields.dimensions]
    if fields.normalize:
        vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
    if fields.encoding_format == "base64":
        return msgspec.Raw(b'"%b"' % base64.b64encode(vector.astype("<f4").tobytes()))
    return msgspec.Raw(msgspec.json.encode(vector.tolist()))
