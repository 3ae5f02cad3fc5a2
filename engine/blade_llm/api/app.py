"""The public port: OpenAI routes, health, metrics."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from blade_llm.api import chat, completions
from blade_llm.api.context import ServerContext
from blade_llm.api.errors import ApiError, install_error_handlers
from blade_llm.api.metrics import CONTENT_TYPE
from blade_llm.api.request_id import RequestIdMiddleware
from blade_llm.api.requests import ChatRequest, CompletionRequest
from blade_llm.api.responses import route as responses
from blade_llm.api.responses.requests import ResponsesRequest
from blade_protocol import paths


def package_version() -> str:
    """The installed distribution's version."""
    try:
        return version("bladellm")
    except PackageNotFoundError:
        return "unknown"


def make_app(context: ServerContext) -> FastAPI:
    """The public application. Bodies are parsed with msgspec; FastAPI routes them and documents them at ``/docs``."""
    app = FastAPI(title="BladeLLM", version=package_version(), redoc_url=None)
    install_error_handlers(app)
    app.add_middleware(RequestIdMiddleware)

    @app.post(paths.CHAT_COMPLETIONS, openapi_extra=_body(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        return await chat.chat_completions(context, request)

    @app.post(paths.COMPLETIONS, openapi_extra=_body(CompletionRequest))
    async def text_completions(request: Request) -> Response:
        """Go on from a text."""
        return await completions.completions(context, request)

    @app.post(paths.RESPONSES, openapi_extra=_body(ResponsesRequest))
    async def create_response(request: Request) -> Response:
        """Answer a conversation of items."""
        return await responses.create(context, request)

    @app.api_route(paths.RESPONSES + "/{path:path}", methods=["GET", "POST", "DELETE"], include_in_schema=False)
    async def stored_response(path: str) -> Response:
        """Of responses that other servers keep."""
        raise responses.not_stored(path)

    @app.get(paths.MODELS)
    async def models() -> Response:
        """The names requests may use."""
        return JSONResponse({"object": "list", "data": [_model(context, name) for name in context.model.names]})

    @app.get(paths.MODELS + "/{name:path}")
    async def model(name: str) -> Response:
        """One model."""
        return JSONResponse(_model(context, context.resolve_model(name)))

    _add_operations(app, context)
    return app


def _add_operations(app: FastAPI, context: ServerContext) -> None:
    @app.get(paths.HEALTH)
    async def health() -> Response:
        """200 when a request sent now would be served."""
        context.require_service()
        return JSONResponse({"status": "ok"})

    @app.get(paths.LIVE)
    async def live() -> Response:
        """503 when the engine has work and has made no progress for too long."""
        if context.stalled:
            message = f"the engine made no progress for {context.live_timeout:g} s with work present"
            raise ApiError(503, message, kind="server_error", code="stalled")
        return JSONResponse({"status": "ok"})

    @app.get("/metric", include_in_schema=False)
    @app.get(paths.METRICS)
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(context.metrics.render(), headers={"content-type": CONTENT_TYPE})

    @app.get("/version")
    async def show_version() -> Response:
        """The server's version."""
        return JSONResponse({"version": package_version()})


def _model(context: ServerContext, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": context.created,
        "owned_by": "bladellm",
        "max_model_len": context.max_model_len,
    }


def _body(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The OpenAPI description of a JSON body, references resolved in place."""
    (schema,), components = msgspec.json.schema_components([kind], ref_template="#/components/{name}")
    name = str(schema["$ref"]).rpartition("/")[2]
    resolved = _inline(components[name], components)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": resolved}}}}


def _inline(schema: Any, components: dict[str, Any]) -> Any:
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _inline(components[str(schema["$ref"]).rpartition("/")[2]], components)
        return {key: _inline(value, components) for key, value in schema.items()}
    return [_inline(value, components) for value in schema] if isinstance(schema, list) else schema
