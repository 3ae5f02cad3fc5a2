"""``POST /internal/service``: the operator says how the service is, for the web UI."""

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from blade_protocol import paths
from blade_protocol.limits import SERVICE_REPORT_BYTES
from blade_router.admin.access import require_token
from blade_router.config.internal_token import token_file


def add_service_route(app: FastAPI, take: Callable[[bytes], Awaitable[None]]) -> None:
    """Add the route, for those with the internal token. ``take`` raises ValueError for what is no report."""
    secret = token_file()

    @app.post(paths.INTERNAL_SERVICE)
    async def service(request: Request) -> Response:
        require_token(request, secret)
        body = await request.body()
        if len(body) > SERVICE_REPORT_BYTES:
            raise HTTPException(413, f"a report has at most {SERVICE_REPORT_BYTES} bytes")
        try:
            await take(body)
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        return Response(status_code=204)
