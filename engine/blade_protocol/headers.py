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

STREAM_IDS: Final = "x-blade-stream-ids"
"""Router → engine, ``1``: write token ids into the stream, as comments (:mod:`blade_protocol.resume`)."""
SEED: Final = "x-blade-seed"
"""Router → engine: the seed of a request that brings none. Engine → router: the seed a stream is drawn with."""
CREATED: Final = "x-blade-created"
"""Engine → router: the ``created`` of a stream."""
PROMPT_DIGEST: Final = "x-blade-prompt-digest"
"""Engine → router: sha256 (hex) over the prompt's token ids and whatever else decides how they go on; equal on every
replica that would give the same answer. Its presence says that the stream can be resumed."""
KV_BLOCKS: Final = "x-blade-kv-blocks"
"""Router → engine, ``1``: tell the prompt's KV blocks. Engine → router: ``STRIDE:BASE64``, the first 8 bytes of the
digest of every STRIDE-th full block of the prompt, one after another."""
