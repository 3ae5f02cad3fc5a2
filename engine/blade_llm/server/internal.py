"""The internal port, for router and operator: state, events, drain, resume.

Never for clients: a token guards it, or it listens on loopback.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from blade_llm.api import adapters
from blade_llm.api.common.body import read_json
from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import bad_request, engine_dead, install_error_handlers
from blade_llm.api.generation.request_scope import request_scope
from blade_llm.api.generation.sse import sse_event
from blade_llm.api.resume import resume
from blade_llm.server.http.access import AccessControl, AccessRules
from blade_llm.server.http.tracing import TraceMiddleware
from blade_llm.server.waiting import first_of
from blade_protocol import paths
from blade_protocol.state import DrainRequest, EngineEvent, EngineState, KVBatch

HEARTBEAT_SECONDS: Final = 5.0
"""Interval of comments on an idle event stream."""


def make_internal_app(context: ServerContext, rules: AccessRules) -> FastAPI:
    """The internal application, for those that ``rules`` let in. Raises as :meth:`AccessRules.read_token`."""
    app = FastAPI(title="BladeLLM internal", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    install_error_handlers(app)
    app.add_middleware(AccessControl, rules=rules, token=rules.read_token())
    app.add_middleware(TraceMiddleware, context=context, paths=(paths.INTERNAL_RESUME,))

    @app.get(paths.INTERNAL_STATE)
    async def state(request: Request) -> Response:
        return Response(msgspec.json.encode(_state(context)), media_type="application/json")

    @app.get(paths.INTERNAL_EVENTS)
    async def events(request: Request) -> Response:
        _state(context)
        return StreamingResponse(
            _events(context), media_type="text/event-stream", headers={"cache-control": "no-cache"}
        )

    @app.get(paths.INTERNAL_KV)
    async def kv(request: Request) -> Response:
        snapshot = context.client.kv.snapshot(_state(context).epoch)
        return Response(msgspec.json.encode(snapshot), media_type="application/json")

    @app.post(paths.INTERNAL_DRAIN)
    async def drain(request: Request) -> Response:
        body = await read_json(request) if await request.body() else {}
        try:
            wanted = msgspec.convert(body, DrainRequest)
        except msgspec.ValidationError as error:
            raise bad_request(str(error)) from None
        if wanted.standby and not wanted.draining:
            raise bad_request("standby goes together with draining: true; leave it out to take the replica back in")
        context.set_draining(wanted.draining, wanted.standby)
        return Response(msgspec.json.encode(_state(context)), media_type="application/json")

    @app.get(paths.INTERNAL_ADAPTERS)
    async def list_adapters(request: Request) -> Response:
        return await adapters.listed(context, request)

    @app.post(paths.INTERNAL_LOAD_ADAPTER)
    async def load_adapter(request: Request) -> Response:
        return await adapters.load(context, request)

    @app.post(paths.INTERNAL_UNLOAD_ADAPTER)
    async def unload_adapter(request: Request) -> Response:
        return await adapters.unload(context, request)

    @app.post(paths.INTERNAL_RESUME)
    async def resume_stream(request: Request) -> Response:
        with request_scope(request.receive):
            return await resume(context, request)

    return app


def _state(context: ServerContext) -> EngineState:
    """The engine's last state; whether it serves and drains is known here first."""
    state = context.state
    if state is None or not context.client.alive:
        raise engine_dead(context.client.failure)
    return msgspec.structs.replace(state, ready=context.healthy, draining=context.draining)


async def _events(context: ServerContext) -> AsyncIterator[bytes]:
    """The state now, then each one the engine pushes (at most ten a second), until the engine or the client is gone.

    No prefix-cache event is left out, unless the client is slow for many seconds: then sequence numbers have gaps.
    """
    changed = asyncio.Event()
    with context.client.watch_state(lambda _: changed.set()), context.client.kv.subscribe() as kv:
        last: EngineState | None = None
        while context.client.alive and not context.stopping.is_set():
            state, batches = _state(context), kv.take()
            if state != last and not batches:
                yield _event(state, None)
            for batch in batches:
                yield _event(state, batch)
            last = state
            if not await first_of(changed.wait(), context.stopping.wait(), timeout=HEARTBEAT_SECONDS):
                yield b": alive\n\n"
            changed.clear()


def _event(state: EngineState, batch: KVBatch | None) -> bytes:
    event = EngineEvent(**msgspec.structs.asdict(state), kv=batch)
    return b"id: %d\n" % state.sequence + sse_event(msgspec.json.encode(event))
