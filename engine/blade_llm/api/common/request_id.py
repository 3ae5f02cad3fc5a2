"""``x-request-id``: taken from the client or made here, given back on every response. A bare ASGI middleware."""

from __future__ import annotations

import re
import uuid
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blade_protocol import headers

_ACCEPTED: Final = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)


class RequestIdMiddleware:
    """Puts the id into ``request.state.request_id`` and the response's headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(headers.REQUEST_ID, "")
        request_id = given if _ACCEPTED.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[headers.REQUEST_ID] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)
