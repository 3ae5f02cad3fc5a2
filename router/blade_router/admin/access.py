"""Who may use the pages that programs query: holders of the internal token."""

from pathlib import Path

from fastapi import Request
from starlette.exceptions import HTTPException

from blade_protocol import headers
from blade_router.config.internal_token import may_see_signals


def presented_tokens(request: Request) -> list[str]:
    """The internal tokens of a request: two of them while the token changes; an empty one without any."""
    return request.headers.getlist(headers.INTERNAL_TOKEN) or [""]


def require_token(request: Request, secret: Path | None) -> None:
    """Let pass who presents the token that ``secret`` holds; without one, who is on this machine.

    Raises:
        HTTPException: 403, with what to send.
    """
    host = request.client.host if request.client is not None else ""
    if not any(may_see_signals(secret, token, host) for token in presented_tokens(request)):
        raise HTTPException(403, f"send the service's token in {headers.INTERNAL_TOKEN}")
