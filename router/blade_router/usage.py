"""What an answer says it has used: read from a whole answer, or from the end of a stream."""

import msgspec

TAIL = 16 << 10
"""Bytes at the end of a stream in which its usage is looked for."""


MOST = 1 << 40
"""More tokens than this are none."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    """Both APIs' names: chat and completions, responses."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None


class _Response(msgspec.Struct):
    usage: _Usage | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None
    response: _Response | None = None


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    """Prompt tokens that came from the prompt cache; None: the engine does not say."""


_decode = msgspec.json.Decoder(_Answer).decode


def usage_of(body: bytes) -> Usage | None:
    """The usage in an answer's JSON, or None where there is none, or one of no tokens at all."""
    try:
        answer = _decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    found = answer.usage or (answer.response.usage if answer.response else None)
    if found is None:
        return None
    prompt, completion = found.prompt_tokens or found.input_tokens, found.completion_tokens or found.output_tokens
    if not (prompt or completion):  # it says nothing
        return None
    details = found.prompt_tokens_details or found.input_tokens_details
    return Usage(
        prompt_tokens=_sane(prompt),
        completion_tokens=_sane(completion),
        cached_tokens=_sane(details.cached_tokens) if details and details.cached_tokens is not None else None,
    )


def _sane(tokens: int) -> int:
    """An engine may write anything, and this is counted with."""
    return tokens if 0 <= tokens <= MOST else max(0, min(tokens, MOST))


def usage_of_stream(tail: bytes) -> Usage | None:
    """The usage in the last events of a stream, of which ``tail`` is the end."""
    if b'"usage"' not in tail:
        return None
    for line in reversed(tail.splitlines()):
        if line.startswith(b"data:") and b'"usage"' in line:
            usage = usage_of(line[5:])
            if usage is not None:
                return usage
    return None
