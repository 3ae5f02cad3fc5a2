"""Errors a client sees, in OpenAI's shape, and how exceptions become responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from blade_llm.engine.client import EngineDeadError, GenerationClosedError
from blade_llm.engine.messages import RequestError
from blade_protocol import headers
from blade_protocol.openai import ENGINE_DEAD, ErrorBody, ErrorDetail

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that disconnected; it only shows in logs."""

LONGEST_ECHO: Final = 100


class ApiError(Exception):
    """A response other than 200. ``message`` says what to change."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.detail = ErrorDetail(message=message, type=kind, param=param, code=code)
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """``{"error": {"message": …, "type": …, "param": …, "code": …}}``"""
        return msgspec.json.encode(ErrorBody(error=self.detail))

    def response(self) -> Response:
        return Response(self.body(), self.status, self.headers, media_type="application/json")


def alternatives(names: Sequence[str]) -> str:
    """``a, b or c``."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def model_not_found(name: str, known: str) -> ApiError:
    """404 for a model that is not served, as OpenAI's and the router's. ``known``: those that are."""
    message = f"The model `{shortened(name)}` does not exist or you do not have access to it; this server has {known}"
    return ApiError(404, message, param="model", code="model_not_found")


def context_exceeded(limit: int, however: str, param: str) -> ApiError:
    """400 for what does not fit into a context of ``limit`` tokens. Clients cut their prompt when they read its
    beginning, which is OpenAI's. ``however``: what does not fit, and what to change."""
    message = f"This model's maximum context length is {limit} tokens. However, {however} (--max_model_len)"
    return bad_request(message, param, "context_length_exceeded")


def refused_by_engine(error: RequestError) -> ApiError | None:
    """The response to what the engine refused; None where a field of the request is at fault."""
    text = str(error)
    match error.kind:
        case "overloaded":
            return ApiError(503, text, kind="overloaded_error", code="busy", headers={"retry-after": "1"})
        case "invalid_logits":
            return ApiError(500, text, kind="server_error", code="invalid_logits")
        case "unknown_adapter":
            return ApiError(404, text, param="model", code="model_not_found")
        case "adapter_differs":
            return ApiError(409, text, param="model", code="adapter_differs")
        case "conflict":
            return ApiError(409, text, code="adapter_exists")
    return None


def shortened(text: str) -> str:
    """``text`` that a client sent, fit to be repeated to it: at most :data:`LONGEST_ECHO` characters and a mark."""
    return text if len(text) <= LONGEST_ECHO else f"{text[:LONGEST_ECHO]}…"


def draining() -> ApiError:
    """503 with the header that sends a router elsewhere at once."""
    return ApiError(
        503,
        "this replica is draining and takes no new requests; retry on another one",
        kind="overloaded_error",
        code="draining",
        headers={headers.DRAINING: "1", "retry-after": "1"},
    )


def engine_dead(error: EngineDeadError) -> ApiError:
    return ApiError(
        503,
        str(error),
        kind="server_error",
        code=ENGINE_DEAD,
        headers={"retry-after": "5"},
    )


def as_api_error(error: Exception) -> ApiError:
    """The error response for ``error``; anything unforeseen is a 500 without details."""
    match error:
        case ApiError():
            return error
        case EngineDeadError():
            return engine_dead(error)
        case GenerationClosedError():
            return ApiError(503, str(error), kind="server_error", headers={"retry-after": "1"})
        case HTTPException():
            kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
            return ApiError(error.status_code, str(error.detail), kind=kind, headers=error.headers)
        case _:
            return ApiError(500, "internal error; the server's log has the details", kind="server_error")


def _methods(request: Request) -> list[str]:
    """Those of all routes that a request's path has."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] != Match.NONE]
    return sorted({method for route in routes for method in getattr(route, "methods", None) or ()})


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of ``app`` OpenAI-shaped, unknown routes and methods included."""

    async def handle(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 404:
            return ApiError(404, f"no route {request.url.path}", kind="not_found_error").response()
        if isinstance(error, HTTPException) and error.status_code == 405:
            message = f"{request.method} is not allowed on {request.url.path}"
            return ApiError(405, message, headers={"allow": ", ".join(_methods(request))}).response()
        return as_api_error(error).response()

    for kind in (ApiError, EngineDeadError, GenerationClosedError, HTTPException, Exception):
        app.add_exception_handler(kind, handle)
