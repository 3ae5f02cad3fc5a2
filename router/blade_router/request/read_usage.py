"""Reading token usage: from a whole response, or from the end of a stream. Apart from its types, whose module cannot be
compiled."""

from typing import Final

import msgspec

from blade_router.request.usage import Usage, decode

TAIL: Final = 16 << 10
"""Bytes at the end of a stream in which its usage is searched."""
MAX_TOKENS: Final = 1 << 40
"""A higher count is no count of tokens."""


def usage_of(body: bytes) -> Usage | None:
    """The usage in a response's JSON, or None where there is none, or one of no tokens at all."""
    try:
        decoded = decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    inside = decoded.response or decoded.message
    found = decoded.usage or (inside.usage if inside else None)
    if found is None:
        return None
    prompt, completion = found.prompt_tokens or found.input_tokens, found.completion_tokens or found.output_tokens
    read, created = found.cache_read_input_tokens, found.cache_creation_input_tokens
    prompt += (read or 0) + (created or 0)
    if not (prompt or completion):  # it says nothing
        return None
    details = found.prompt_tokens_details or found.input_tokens_details
    cached = details.cached_tokens if details else read
    return Usage(
        prompt_tokens=_sane(prompt),
        completion_tokens=_sane(completion),
        cached_tokens=_sane(cached) if cached is not None else None,
    )


def _sane(tokens: int) -> int:
    """Bound a count: an engine may write anything, and limits count with it."""
    return tokens if 0 <= tokens <= MAX_TOKENS else max(0, min(tokens, MAX_TOKENS))


def usage_of_stream(tail: bytes, begun: Usage | None = None) -> Usage | None:
    """The usage in the last events of a stream, of which ``tail`` is the end.

    Args:
        begun: what its first event said of the prompt, where the last ones may not repeat it.
    """
    if b'"usage"' not in tail:
        return None
    for line in reversed(tail.splitlines()):
        if line.startswith(b"data:") and b'"usage"' in line:
            usage = usage_of(line[5:])
            if usage is not None:
                if begun is None or usage.prompt_tokens:
                    return usage
                return Usage(begun.prompt_tokens, usage.completion_tokens, begun.cached_tokens)
    return None
