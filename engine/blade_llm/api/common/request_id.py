"""``x-request-id``: taken from the client or made here, given back on every response. A bare ASGI middleware."""

from __future__ import annotations

import re
import uuid
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blade_protocol import headers

_LONGEST_HEADER: Final = 2048
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
                given_back = MutableHeaders(scope=message)
                given_back[headers.REQUEST_ID] = request_id
                if ignored := scope["state"].get("ignored"):
                    listed = [*filter(None, [given_back.get(headers.IGNORED)]), *ignored]
                    given_back[headers.IGNORED] = ", ".join(listed)[:_LONGEST_HEADER]
            await send(message)

        await self._app(scope, receive, send_with_id)
