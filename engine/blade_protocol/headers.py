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
"""Router → engine, ``1``: write the token ids of each event of a stream as a comment line before it."""
SEED: Final = "x-blade-seed"
"""Router → engine: the seed of a request that brings none, so that another replica can draw the same tokens."""
PROMPT_DIGEST: Final = "x-blade-prompt-digest"
"""Engine → router: sha256 (hex) over the prompt's token ids and what else its KV depends on; equal on every replica."""
KV_BLOCKS: Final = "x-blade-kv-blocks"
"""Router → engine, ``1``: tell the prompt's KV blocks. Engine → router: ``STRIDE:BASE64``, the first 8 bytes of the
digest of every STRIDE-th full block of the prompt, one after another."""
