"""Errors in Anthropic's shape on the paths of its API, whoever makes them. A bare ASGI middleware."""

from __future__ import annotations

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blade_protocol import anthropic
from blade_protocol.openai import ErrorBody

_decode = msgspec.json.Decoder(ErrorBody).decode
_UNFORESEEN = "internal error; the server's log has the details"


class MessageErrorsMiddleware:
    """Rewrites the body of every error response, and adds ``request-id``: below whatever sets the request's id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not anthropic.speaks_anthropic(scope["path"].rstrip("/")):
            await self._app(scope, receive, send)
            return
        rewriting = _Rewriting(send, scope["state"]["request_id"])
        try:
            await self._app(scope, receive, rewriting)
        except Exception:
            if not rewriting.started:
                await rewriting.respond(500, _UNFORESEEN)
            raise  # logged further out


class _Rewriting:
    """``send`` of one response."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self._error: Message | None = None
        """The head of an error whose body is still to come."""
        self._body = b""
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = MutableHeaders(scope=message)
            headers[anthropic.REQUEST_ID] = self._request_id
            if message["status"] >= 400 and headers.get("content-type", "").startswith("application/json"):
                self._error = message
                return
        elif self._error is not None:
            self._body += message.get("body", b"")
            if message.get("more_body"):
                return
            head, self._error = self._error, None
            body = self._rewritten(head["status"])
            MutableHeaders(scope=head)["content-length"] = str(len(body))
            await self._send(head)
            message = {**message, "body": body}
        await self._send(message)

    async def respond(self, status: int, message: str) -> None:
        body = anthropic.error_body(status, message, request_id=self._request_id)
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        self.started = True
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*raw, (anthropic.REQUEST_ID.encode(), self._request_id.encode())],
            }
        )
        await self._send({"type": "http.response.body", "body": body})

    def _rewritten(self, status: int) -> bytes:
        try:
            error = _decode(self._body).error
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._body
        return anthropic.error_body(status, error.message, error.code, self._request_id)
