"""The error body of every program, in the shape that OpenAI clients expect."""

from typing import Final

import msgspec

ENGINE_DEAD: Final = "engine_dead"
"""``code`` of the 503 for a request that was lost with its engine process: the API-server process outlives that."""


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    """``invalid_request_error``, ``not_found_error``, ``server_error``, ``overloaded_error`` …"""
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorDetail
