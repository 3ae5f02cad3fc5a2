"""CORS (the Fetch standard's protocol): which web pages may use the API from a browser."""

from collections.abc import Collection

from blade_protocol import anthropic
from blade_protocol import headers as names
from blade_router.http.client import Client
from blade_router.http.errors import Headers
from blade_router.http.head import RawRequest

_PREFLIGHT_SECONDS = b"600"
_EXPOSED = ", ".join(
    (
        *(names.REQUEST_ID, names.TRACE_ID, names.ENDPOINT, names.ROUTE_REASON, names.IGNORED, names.UNHELD),
        *("retry-after", anthropic.REQUEST_ID),
    )
).encode()


class Cors:
    """The CORS rules of one configuration.

    Args:
        origins: ``https://chat.example.com`` and the like, or ``*`` for every page.
    """

    def __init__(self, origins: Collection[str]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origin.rstrip("/").lower().encode("latin-1", "replace") for origin in origins)

    def headers(self, request: RawRequest) -> Headers:
        """Headers for every response to this request; empty without an origin, or for one that is not allowed."""
        return self.headers_for(request.header(b"origin"))

    def headers_for(self, origin: bytes) -> Headers:
        """The same for one that came no further than its headers, with this ``Origin``."""
        if not origin or not (self._any or origin.lower() in self._origins):
            return []
        headers = [(b"access-control-expose-headers", _EXPOSED)]
        if self._any:
            return [(b"access-control-allow-origin", b"*"), *headers]
        return [(b"access-control-allow-origin", origin), (b"vary", b"origin"), *headers]

    @staticmethod
    def is_preflight(request: RawRequest) -> bool:
        return request.method == b"OPTIONS" and bool(request.header(b"access-control-request-method"))

    @staticmethod
    async def respond_to_preflight(request: RawRequest, client: Client) -> None:
        """Respond with what an allowed page may send; the connection adds the allowed origin."""
        headers = [
            (b"access-control-allow-methods", b"GET, POST, DELETE"),
            (b"access-control-max-age", _PREFLIGHT_SECONDS),
        ]
        if wanted := request.header(b"access-control-request-headers"):
            headers.append((b"access-control-allow-headers", wanted))
        await client.start(204, headers)
        await client.finish()
