"""The public port: routes, errors, request ids, and a document that says what is served."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api import adapters
from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import install_error_handlers
from blade_llm.api.common.request_id import RequestIdMiddleware
from blade_llm.api.common.response_notes import noting
from blade_llm.api.common.tasks import is_served, refuse
from blade_llm.api.generation.kv_blocks import with_blocks_header
from blade_llm.api.generation.request_scope import request_scope
from blade_llm.api.messages.errors import MessageErrorsMiddleware
from blade_llm.api.responses import stored as responses
from blade_llm.engine.version import package_version
from blade_llm.server import operations
from blade_llm.server.http.access import AccessControl, AccessRules
from blade_llm.server.http.cors import CorsMiddleware
from blade_llm.server.http.plain_paths import PlainPaths
from blade_llm.server.http.tracing import TraceMiddleware
from blade_llm.server.openapi import describe
from blade_llm.server.routes import ROUTES, Handler
from blade_protocol import paths

_READ: Final = ["GET", "HEAD"]


def make_app(context: ServerContext, rules: AccessRules) -> FastAPI:
    """The public application, for those that ``rules`` let in. Raises as :meth:`AccessRules.read_token`.

    Bodies are parsed with msgspec; FastAPI routes them, and shows ``/docs``.
    """
    app = FastAPI(title="BladeLLM", version=package_version(), redoc_url=None, redirect_slashes=False)
    install_error_handlers(app)
    app.add_middleware(AccessControl, rules=rules, token=rules.read_token())
    app.add_middleware(MessageErrorsMiddleware)
    app.add_middleware(TraceMiddleware, context=context)
    app.add_middleware(RequestIdMiddleware)
    app.add_middleware(PlainPaths, comments=context.comments)
    if rules.allowed_origins:
        app.add_middleware(CorsMiddleware, origins=rules.allowed_origins)  # the last one added is the first to run
    served = [route for route in ROUTES if is_served(route.path, context.model.task)]
    for route in ROUTES:
        # A model's name may be a path.
        path = route.path.replace("{model}", "{model:path}")
        handler = route.handler if route in served else refuse
        methods = _READ if route.method == "GET" else [route.method]
        app.add_api_route(path, _endpoint(context, handler), methods=methods, include_in_schema=False)
    endpoint = _endpoint(context, operations.tokenizer_info)  # in no document: most servers do not show it
    app.add_api_route(paths.TOKENIZER_INFO, endpoint, methods=_READ, include_in_schema=False)
    for path, handler in adapters.CLIENT_ROUTES.items():  # in no document: most servers do not allow them
        app.add_api_route(path, _endpoint(context, handler), methods=["POST"], include_in_schema=False)
    stored = responses.stored if is_served(paths.RESPONSES, context.model.task) else refuse
    for methods in (_READ, ["POST"], ["DELETE"]):  # in no document: what a router may serve by id
        path = paths.RESPONSES + "/{rest:path}"
        app.add_api_route(path, _endpoint(context, stored), methods=methods, include_in_schema=False)
    app.openapi = functools.cache(lambda: describe(served, context))  # type: ignore[method-assign]
    return app


def _endpoint(context: ServerContext, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        with noting(strict=context.strict_fields) as notes, request_scope(request.receive):
            response = await handler(context, request)
        notes.write(response.headers)
        context.metrics.count_ignored(notes.unknown.count)
        return await with_blocks_header(request, response)

    return endpoint
