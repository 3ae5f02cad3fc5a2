"""The headers of an engine's response that reach its client."""

from blade_protocol import headers as names
from blade_protocol.anthropic import speaks_anthropic
from blade_router.http.errors import Headers, Refused
from blade_router.request.request import ANTHROPIC_REQUEST_ID, HOP_BY_HOP, REQUEST_ID, ROUTER_PREFIX, ClientRequest

CORS = frozenset(
    b"access-control-" + name
    for name in (
        *(b"allow-origin", b"allow-credentials", b"allow-headers", b"allow-methods"),
        *(b"expose-headers", b"max-age", b"allow-private-network"),
    )
)
"""CORS is the router's decision: vLLM by default allows every origin."""
ELSEWHERE = frozenset((b"location", b"content-location", b"refresh", b"alt-svc"))
"""Headers that send a client to an address of the engine's choice: past the router, its keys and its limits."""
REDIRECTS = frozenset((300, 301, 302, 303, 305, 307, 308))

_FOR_CLIENTS = frozenset((names.IGNORED.encode(), names.UNHELD.encode()))
"""Headers of ours that engines have for clients."""
_NOT_FORWARDED = HOP_BY_HOP | CORS | ELSEWHERE | {REQUEST_ID, ANTHROPIC_REQUEST_ID, names.TRACE_ID.encode()}
_MEASURED = _NOT_FORWARDED | {b"content-length"}


def forwardable(upstream: Headers, length: int | None) -> Headers:
    """A response's headers without those about the connection, those that lead past the router, and those the router
    writes itself.

    ``length`` is the size of the body where all of it is there, and replaces the one the engine sent.
    """
    dropped = _NOT_FORWARDED if length is None else _MEASURED
    headers = [
        header
        for header in upstream
        if header[0] not in dropped and (header[0] in _FOR_CLIENTS or not header[0].startswith(ROUTER_PREFIX))
    ]
    for connection in [value for name, value in upstream if name == b"connection"]:
        named = {token.strip() for token in connection.lower().split(b",")}
        headers = [header for header in headers if header[0] not in named]
    if length is not None:
        headers.append((b"content-length", b"%d" % length))
    return headers


def request_ids(request: ClientRequest) -> Headers:
    """The headers with the id of a request, by the names that its API's clients know."""
    ids = [(REQUEST_ID, request.id)]
    if speaks_anthropic(request.path):
        ids.append((ANTHROPIC_REQUEST_ID, request.id))
    return ids


def redirected(status: int, headers: Headers) -> Refused:
    """The response to a request that an engine redirects: the router neither follows that nor passes it on.

    Args:
        headers: what the router adds to a response of this engine.
    """
    message = (
        f"the engine redirected this request ({status}), and the router passes no redirects on; check the path: the "
        "OpenAI API is under /v1/"
    )
    return Refused(502, message, code="engine_redirected", headers=headers)
