"""``x-blade-unheld``: constraints of a request's schemas that its outputs are not held to, and who sends it may check.

A grammar cannot follow them (``uniqueItems`` of many values), and to refuse the request would help nobody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.common.context import ServerContext
from blade_protocol import headers

_MOST: Final = 8
_LONGEST: Final = 128
"""Characters of a place; a longer one is cut."""
_PLACES: ContextVar[dict[str, None] | None] = ContextVar("unheld_places", default=None)
Handler = Callable[[ServerContext, Request], Awaitable[Response]]


def note_unheld(places: Iterable[str]) -> None:
    """Remember ``places`` (JSON pointers) for the response to the request that is being handled."""
    if (found := _PLACES.get()) is not None:
        found.update(dict.fromkeys(places))


def with_unheld_header(handler: Handler) -> Handler:
    """``handler`` whose responses name what was noted meanwhile: pointers as URI fragments, commas between."""

    async def handle(context: ServerContext, request: Request) -> Response:
        places: dict[str, None] = {}
        token = _PLACES.set(places)
        try:
            response = await handler(context, request)
        finally:
            _PLACES.reset(token)
        if places:
            named = (quote(place[:_LONGEST], safe="#/~:@!$&'()*+;=-._") for place in list(places)[:_MOST])
            response.headers[headers.UNHELD] = ", ".join(named)
        return response

    return handle
