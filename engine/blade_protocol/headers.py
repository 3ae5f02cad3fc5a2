"""HTTP headers that the three programs add or read.

Clients cannot set them: the router drops every request header that starts with ``CLIENT_FORBIDDEN_PREFIX``.
"""

from typing import Final

CLIENT_FORBIDDEN_PREFIX: Final = "x-blade-"

REQUEST_ID: Final = "x-request-id"
"""Identifier of a request, end to end; created by the first program that sees a request without one."""
TRACE_ID: Final = "x-trace-id"
"""Router or engine → client: the trace (W3C) that the request belongs to, whether it is recorded or not."""
DRAINING: Final = "x-blade-draining"
"""Set to ``1`` on a 503 of a draining engine: the router fails over to another one at once."""
ENDPOINT: Final = "x-blade-endpoint"
"""Name of the replica that responded."""
ROUTE_REASON: Final = "x-blade-route-reason"
"""Reason for which the router chose that replica."""
INTERNAL_TOKEN: Final = "x-blade-internal-token"
"""The per-service secret that authorises requests to the internal port."""
IGNORED: Final = "x-blade-ignored"
"""Engine → client, through the router: fields of the request that nobody knows and that were left out, with commas
between."""

COMMENTS: Final = "x-blade-comments"
"""Router → engine, ``0``: no comments while a stream is silent. The router sends its client some of its own, and an
engine that has not begun can still refuse, and the request go elsewhere."""
STREAM_IDS: Final = "x-blade-stream-ids"
"""Router → engine, ``1``: write token ids into the stream, as comments (:mod:`blade_protocol.resume`)."""
SEED: Final = "x-blade-seed"
"""Router → engine: the seed of a request that brings none. Engine → router: the seed that a stream is sampled with."""
CREATED: Final = "x-blade-created"
"""Engine → router: the ``created`` of a stream."""
PROMPT_DIGEST: Final = "x-blade-prompt-digest"
"""Engine → router: sha256 (hex) over the prompt's token ids and all else that determines the output, and after a dot
that of the content of the adapter that computes it, if there is one; equal on every replica that would generate the
same output. Its presence marks the stream as resumable."""
KV_BLOCKS: Final = "x-blade-kv-blocks"
"""Router → engine, ``1``: report the prompt's KV blocks. Engine → router: ``STRIDE:BASE64``, the first 8 bytes of the
digest of every STRIDE-th full block of the prompt, concatenated."""
UNHELD: Final = "x-blade-unheld"
"""Engine → client: places (JSON pointers) of constraints in a request's schemas that outputs are not held to."""
RESPONSE_TAG: Final = "x-blade-response-tag"
"""Router → engine: 8 hex digits that the ids of its responses begin with after ``resp_``, by which routers find it."""
CALLER: Final = "x-blade-caller"
"""Router → engine: stands for the API key of a request, where routers require one; equal for one key everywhere."""
