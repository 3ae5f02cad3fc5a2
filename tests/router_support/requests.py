"""Requests as the router has read them."""

import json
from typing import Any

from blade_router.request.parse import parse_fields
from blade_router.request.request import ClientRequest


def request(path: str = "/v1/chat/completions", /, **body: Any) -> ClientRequest:
    """A request with these fields in its body."""
    data = json.dumps(body, indent=1).encode()
    return ClientRequest(method="POST", path=path, fields=parse_fields(data), body=data, id=b"r")
