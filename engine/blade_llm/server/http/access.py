"""Who may use a port: checked before a request reaches a route, without reading its body. A bare ASGI middleware.

Three callers must not get through. One in the same network who goes around the router, and so around its API keys: the
token keeps it out. And two in a browser on the machine that serves: a page of another site that sends a request to
``http://127.0.0.1`` (its body is no JSON, or it has an ``Origin``), and one whose name was made to resolve to
127.0.0.1 (DNS rebinding; its ``Host`` is still that name).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from blade_llm.api.common.errors import ApiError, shortened
from blade_llm.server.http.internal_token import InternalToken
from blade_protocol import headers, paths

OPEN_PATHS: Final = frozenset((paths.HEALTH, paths.READY, paths.PING, paths.LIVE, paths.METRICS, paths.METRIC))
"""Paths that anybody may use: probes and Prometheus have no token, and know a pod by its address."""
LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
ANY_HOST: Final = "*"


class AccessRules(msgspec.Struct, frozen=True, kw_only=True):
    """Who may use one port. Crosses the process boundary as msgpack."""

    token_file: str | None = None
    """File with the internal token, which requests need; None: they need none."""
    allowed_hosts: tuple[str, ...] | None = None
    """Names and addresses in a request's ``Host``, without a port; None: any."""
    allowed_origins: tuple[str, ...] = ()
    """Pages that may read responses from a browser (CORS), see :mod:`~blade_llm.server.http.cors`; ``*``: any."""
    refuse_origins: bool = False
    """Refuse what a browser sends for a page, its own included."""

    def read_token(self) -> InternalToken | None:
        """The token, if there is one. Raises OSError or ValueError when its file cannot be read or is empty."""
        return None if self.token_file is None else InternalToken(Path(self.token_file))


class AccessControl:
    """Refuses requests that ``rules`` do not allow, but for :data:`OPEN_PATHS`. ``token``: what the rules name."""

    def __init__(self, app: ASGIApp, rules: AccessRules, token: InternalToken | None) -> None:
        self._app = app
        self._token = token
        self._hosts = None if rules.allowed_hosts is None else frozenset(map(str.lower, rules.allowed_hosts))
        self._refuse_origins = rules.refuse_origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            refusal = self._refusal(Headers(scope=scope))
            if refusal is not None:
                await refusal.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, given: Headers) -> ApiError | None:
        if self._hosts is not None and (host := given.get("host")) and _name(host) not in self._hosts:
            name = shortened(_name(host))
            message = f"{name!r} is no name of this server; use 127.0.0.1, or start it with --allowed_hosts {name}"
            return ApiError(403, message, kind="permission_error", code="host_not_allowed")
        if self._refuse_origins and "origin" in given:
            message = "this port is for the router and the operator, not for pages in a browser; send no Origin"
            return ApiError(403, message, kind="permission_error", code="origin_not_allowed")
        if self._token is not None and not any(map(self._token.accepts, given.getlist(headers.INTERNAL_TOKEN))):
            message = (
                "this engine serves its router alone: send requests to the service's router, "
                f"or the service's internal token in the {headers.INTERNAL_TOKEN} header"
            )
            return ApiError(401, message, kind="authentication_error", code="invalid_token")
        return None


def allowed_hosts(address: str, host: str, more: Sequence[str] | None) -> tuple[str, ...] | None:
    """Hosts that requests to a port may name; None: any.

    Args:
        address: the IP address it is bound to. Elsewhere than on loopback only ``more`` narrows the hosts down.
        host: the name that was bound.
        more: what ``--allowed_hosts`` has.
    """
    if more is None and not ipaddress.ip_address(address).is_loopback:
        return None
    if more is not None and ANY_HOST in more:
        return None
    return (*LOOPBACK_HOSTS, host, *(more or ()))


def _name(host: str) -> str:
    """``Host`` without a port and without the brackets of an IPv6 address."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower().removesuffix(".")
