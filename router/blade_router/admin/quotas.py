"""``POST /internal/quotas``: the replicas of a router lend each other shares of limits."""

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from blade_protocol import paths
from blade_router.admin.access import require_token
from blade_router.config.internal_token import token_file

MAX_BYTES = 48 << 10
"""Limit of a message; one with as many needs as there may be is half as long."""


def add_quotas_route(app: FastAPI, reply: Callable[[bytes], Awaitable[bytes]]) -> None:
    """Add the route. ``reply`` raises ``ValueError`` for what is no message."""
    secret = token_file()

    @app.post(paths.INTERNAL_QUOTAS)
    async def quotas(request: Request) -> Response:
        require_token(request, secret)
        message = await request.body()
        if len(message) > MAX_BYTES:
            raise HTTPException(413, f"a message has at most {MAX_BYTES} bytes")
        try:
            return Response(await reply(message), media_type="application/json")
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
