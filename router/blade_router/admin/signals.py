"""``GET /internal/signals``: what an autoscaler decides by, at once or as soon as there is demand."""

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from blade_protocol import paths
from blade_router.admin.access import require_token
from blade_router.admission.demand import Demand, TooManyWaiters
from blade_router.config.internal_token import token_file

DEMAND = "demand"
MAX_WAIT_SECONDS = 300.0
"""Longest ``timeout`` of a request that waits for demand."""


def add_signals_route(app: FastAPI, signals: Callable[[], Awaitable[bytes]], demand: Demand) -> None:
    """Add the route. ``signals`` returns the present ones, as JSON."""
    secret = token_file()

    @app.get(paths.INTERNAL_SIGNALS)
    async def respond(request: Request) -> Response:
        """The signals; with ``wait_for=demand`` once a request waits for an engine, or after ``timeout`` seconds."""
        require_token(request, secret)
        if (wait_for := request.query_params.get("wait_for")) is not None:
            if wait_for != DEMAND:
                raise HTTPException(400, f"wait_for: must be {DEMAND}")
            seconds = _seconds(request.query_params.get("timeout", "30"))
            try:
                await _wait(request, demand, seconds)
            except TooManyWaiters:
                message = "as many as allowed wait for demand already: query the signals now and then instead"
                raise HTTPException(503, message, {"retry-after": "10"}) from None
        return Response(await signals(), media_type="application/json")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 < seconds <= MAX_WAIT_SECONDS:  # nan is not, either
        raise HTTPException(400, f"timeout: must be seconds, more than 0 and at most {MAX_WAIT_SECONDS:g}")
    return seconds


async def _wait(request: Request, demand: Demand, seconds: float) -> None:
    """Wait for demand, no longer than the client does."""
    await request.body()  # what comes after it is the end of the connection
    waiting = asyncio.ensure_future(demand.wait(seconds))
    leaving = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait([waiting, leaving], return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            waiting.result()
    finally:
        for task in (waiting, leaving):
            task.cancel()
