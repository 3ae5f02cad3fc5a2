"""Finds the trace that a request belongs to, says its id in the response, and ends its span. A bare ASGI middleware."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blade_llm.api.common.context import ServerContext
from blade_llm.api.telemetry.tracing import STATE, RequestTrace
from blade_protocol import headers
from blade_telemetry import names
from blade_telemetry.context import TRACEPARENT, parse_traceparent
from blade_telemetry.logs import request_fields

_MOST_PATH: Final = 1024


class TraceMiddleware:
    """Puts the trace of a request that is recorded into its state, and exports it when the response has ended."""

    def __init__(self, app: ASGIApp, context: ServerContext, paths: Collection[str] | None = None) -> None:
        self._app = app
        self._context = context
        self._paths = paths
        """Those that are traced; None: all."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (self._paths is not None and scope["path"] not in self._paths):
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope)
        parent, tracer = given.get(TRACEPARENT, ""), self._context.tracer
        trace: RequestTrace | None = None
        trace_id = ""
        # A router decides for its engines: without a traceparent it has decided against it.
        routed = self._paths is not None or headers.COMMENTS in given
        if tracer is not None and scope["method"] == "POST" and (parent or not routed):
            trace_id, trace = tracer.begin(parent)
        elif parent and (found := parse_traceparent(parent)) is not None:
            trace_id = found.trace_id
        state = scope.setdefault("state", {})
        token = request_fields.set({"request_id": state.get("request_id", ""), "trace_id": trace_id})
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[headers.TRACE_ID] = trace_id
            await send(message)

        if trace is not None:
            state[STATE] = trace
        try:
            await self._app(scope, receive, send_with_id if trace_id else send)
        finally:
            request_fields.reset(token)
            if trace is not None and tracer is not None:
                self._end(scope, trace, status, state.get("request_id", ""))

    def _end(self, scope: Scope, trace: RequestTrace, status: int, request_id: str) -> None:
        tracer = self._context.tracer
        assert tracer is not None
        path = scope["path"][:_MOST_PATH]
        address, port = scope.get("server") or ("", 0)
        operation = trace.attributes.get(names.OPERATION) or names.operation(path)
        model = trace.attributes.get(names.REQUEST_MODEL, "")
        attributes = {
            names.HTTP_METHOD: scope["method"],
            names.URL_PATH: path,
            names.OPERATION: operation,
            names.REQUEST_ID: request_id,
            names.SERVER_ADDRESS: address,
            names.SERVER_PORT: port or 0,
            names.CLIENT_ADDRESS: (scope.get("client") or ("",))[0],
        }
        name = f"{operation} {model}" if operation and model else f"{scope['method']} {path}"
        tracer.end(trace, name, attributes, status)
        self._context.metrics.set_dropped_spans(tracer.export.dropped)
