"""How a stream outlives its engine: what the router keeps of it, and what it asks another replica for.

Asked with ``x-blade-stream-ids: 1``, an engine ends everything it writes into a stream with a comment that holds the
token ids behind it, so that the ids so far determine the bytes so far::

    data: {"choices":[{"delta":{"content":"Hello"}}]}

    : 9707

One such group may hold several events and several ids. The last one (finish reason, usage, ``[DONE]``) is one group.
An engine that has to cut a stream writes ``: lost`` in place of an error event: go on elsewhere.
"""

from typing import Final

import msgspec

LOST: Final = b": lost\n\n"
"""Ends a stream that this engine cannot go on with, though another one can."""


class ResumeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``POST /internal/resume``: answered by the rest of the stream, with comments as before."""

    path: str
    """The public path the client asked, e.g. ``/v1/chat/completions``."""
    request: msgspec.Raw
    """The client's JSON body."""
    request_id: str
    """The ``x-request-id`` of the answer that broke off; the ids in the stream are made of it."""
    created: int
    """Its ``x-blade-created``."""
    seed: int
    """Its ``x-blade-seed``."""
    prompt_digest: str
    """Its ``x-blade-prompt-digest``; a replica with another one refuses (409)."""
    token_ids: list[list[int]]
    """The ids the client has the bytes of, group by group."""
