"""Resuming a stream whose engine died: what the router records of it, and the request it sends to another replica.

For a request with ``x-blade-stream-ids: 1`` an engine follows everything it writes into a stream by a comment with the
token ids behind it, so that the ids so far determine the bytes so far::

    data: {"choices":[{"delta":{"content":"Hello"}}]}

    : 9707

One such group may hold several events and several ids. The last one (finish reason, usage, ``[DONE]``) is one group.
An engine that has to cut a stream writes ``: lost`` in place of an error event: the router resumes it elsewhere.
"""

import hashlib
from typing import Final

import msgspec

BEFORE_ADAPTER: Final = "."
"""Between the digests of the prompt and of the adapter."""
LOST: Final = b": lost\n\n"
"""Ends a stream that this engine cannot continue, though another replica can."""


class ResumeRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of ``POST /internal/resume``: the response is the rest of the stream, with comments as before."""

    path: str
    """The public path of the client's request, e.g. ``/v1/chat/completions``."""
    request: msgspec.Raw
    """The client's JSON body."""
    request_id: str
    """The ``x-request-id`` of the response that broke off; the ids in the stream derive from it."""
    created: int
    """Its ``x-blade-created``."""
    seed: int
    """Its ``x-blade-seed``."""
    prompt_digest: str
    """Its ``x-blade-prompt-digest``; a replica with another one refuses (409)."""
    token_ids: list[list[int]]
    """The token ids whose bytes the client has received, group by group."""
    response_tag: str = ""
    """The ``x-blade-response-tag`` of a request for a response, as the lost engine got it."""
    owner: tuple[str, str] | None = None
    """Its ``x-blade-caller`` and ``authorization``, as the lost engine got them, each empty for none: who may come back
    to the response, which the replica keeps. None: nobody looks for it there, and it is not kept."""


def stream_key(request_id: str, seed: int, prompt_digest: str) -> str:
    """What a stream's ids derive from, the same wherever it continues. ``prompt_digest``: without the adapter's."""
    return f"{request_id}/{seed}/{prompt_digest}"


def response_number(key: str) -> str:
    """The end of the id of the response that a stream of this :func:`stream_key` writes."""
    return hashlib.sha256(f"response {key}".encode()).hexdigest()[:32]
