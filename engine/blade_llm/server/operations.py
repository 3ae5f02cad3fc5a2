"""Routes that need nothing of the engine: models, health, metrics, version."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import ApiError, model_not_found
from blade_llm.api.metrics.requests import CONTENT_TYPE
from blade_llm.engine.version import package_version
from blade_protocol import paths


async def models(context: ServerContext, request: Request) -> Response:
    """The names requests may use: of the model, then of adapters, whose ``parent`` it is."""
    names = (*context.model.names, *_adapters(context))
    return JSONResponse({"object": "list", "data": [_model(context, name) for name in names]})


async def model(context: ServerContext, request: Request) -> Response:
    """One model."""
    name = request.path_params["model"]
    if context.adapter_of(name) and name not in _adapters(context):
        raise model_not_found(name, ", ".join((*context.model.names, *_adapters(context))))
    return JSONResponse(_model(context, context.resolve_model(name)))


async def health(context: ServerContext, request: Request) -> Response:
    """200 when a request sent now would be served."""
    context.require_service()
    return JSONResponse({"status": "ok"})


async def load(context: ServerContext, request: Request) -> Response:
    """How many requests run or wait, in vLLM's shape."""
    state = context.state
    return JSONResponse({"server_load": 0 if state is None else state.running + state.waiting})


async def tokenizer_info(context: ServerContext, request: Request) -> Response:
    """The tokenizer's configuration and the chat template, in vLLM's shape."""
    model = context.model
    if not model.tokenizer_info:
        message = f"{paths.TOKENIZER_INFO} is not served; start the server with --enable_tokenizer_info_endpoint"
        raise ApiError(404, message, kind="not_found_error")
    template = None if model.chat_template is None else model.chat_template.source
    tokenizer = model.tokenizer
    shown = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.config, **tokenizer.special_tokens}
    return JSONResponse({**shown, "chat_template": template})


async def live(context: ServerContext, request: Request) -> Response:
    """503 when the engine has work and has made no progress for too long."""
    if context.stalled:
        message = f"the engine made no progress for {context.live_timeout:g} s with work present"
        raise ApiError(503, message, kind="server_error", code="stalled")
    return JSONResponse({"status": "ok"})


async def metrics(context: ServerContext, request: Request) -> Response:
    """Prometheus metrics."""
    return Response(context.metrics.render(), headers={"content-type": CONTENT_TYPE})


async def version(context: ServerContext, request: Request) -> Response:
    """The server's version."""
    return JSONResponse({"version": package_version()})


def _adapters(context: ServerContext) -> tuple[str, ...]:
    return () if context.state is None else context.state.adapters


def _model(context: ServerContext, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": context.created,
        "owned_by": "bladellm",
        "root": name,  # clients of vLLM read it, and find nothing out about the server's files
        "parent": context.model.names[0] if name in _adapters(context) else None,
        "max_model_len": context.max_model_len,
    }
