"""HTTP headers the three programs add or read.

Clients may not speak for us: the router drops every request header that starts with ``CLIENT_FORBIDDEN_PREFIX``.
"""

from typing import Final

CLIENT_FORBIDDEN_PREFIX: Final = "x-blade-"

REQUEST_ID: Final = "x-request-id"
"""Kept end to end; made by the first program that sees a request without one."""
DRAINING: Final = "x-blade-draining"
"""Set to ``1`` on a 503 of an engine that is draining: the router goes elsewhere at once."""
ENDPOINT: Final = "x-blade-endpoint"
"""Which replica answered."""
ROUTE_REASON: Final = "x-blade-route-reason"
"""Why the router chose that replica."""
INTERNAL_TOKEN: Final = "x-blade-internal-token"
"""The per-service secret that opens the internal port."""
