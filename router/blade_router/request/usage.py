"""Token usage as a response reports it."""

import msgspec


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    """The names of all APIs: chat and completions, responses, messages."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    """These two are no part of ``input_tokens``."""


class _Response(msgspec.Struct):
    usage: _Usage | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None
    response: _Response | None = None
    message: _Response | None = None


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    """Prompt tokens that came from the prefix cache; None: the engine does not report it."""


decode = msgspec.json.Decoder(_Body).decode
