"""Estimating how many tokens a request will use.

The router has no tokenizer. It knows how many bytes a request has, and learns from the usage of responses how many of
them make a token of this model, and how long outputs are that have no limit.
"""

import re

import msgspec

from blade_protocol import paths
from blade_router.request.message import ABSENT
from blade_router.request.models import WITHOUT_OUTPUT, output_token_limit
from blade_router.request.output_size import count, outputs, token_limit
from blade_router.request.request import ClientRequest
from blade_router.request.usage import Usage

FIRST_BYTES = 4.0
"""Bytes of a token before anything was learned."""
FIRST_OUTPUT = 256.0
"""Tokens of an output without a limit, before anything was learned."""
_FORGET = 0.98
"""How much of what was learned counts after another request."""
LEARN_ALL = 256
LEARN_EVERY = 8
"""After the first ``LEARN_ALL`` responses, one of so many is learned from."""
MAX_LEARNED = 1 << 24
"""Tokens; an engine that reports more is ignored."""
_IDS = re.compile(rb"\s*\[\s*(\[\s*)?\d")
_LEARN_FROM = 64
"""Bytes; a shorter prompt is all template."""


class Estimate:
    """The estimate for one model's requests."""

    __slots__ = ("_bytes", "_count", "_output", "_output_tokens", "_per_byte", "_seen", "_tokens")

    def __init__(self) -> None:
        self._tokens = 1000.0
        self._bytes = FIRST_BYTES * self._tokens
        self._per_byte = 1 / FIRST_BYTES
        self._output_tokens = FIRST_OUTPUT * 4
        self._count = 4.0
        self._output = int(FIRST_OUTPUT)
        self._seen = 0

    def prompt(self, request: ClientRequest) -> int:
        """Tokens of the prompt."""
        given = given_tokens(request)
        if given is not None:
            return given
        return int(text_bytes(request) * self._per_byte) + 1 + request.media.tokens

    def output(self, request: ClientRequest) -> int:
        """The most tokens its outputs may have; the usual number where it has no limit."""
        return 0 if request.path in WITHOUT_OUTPUT else output_token_limit(request.fields, self._output)

    def learn(self, request: ClientRequest, usage: Usage) -> None:
        """Learn from the usage of a response. Of many, every few are enough."""
        if usage.prompt_tokens < 0 or not 0 <= usage.completion_tokens <= MAX_LEARNED:
            return
        self._seen += 1
        if self._seen > LEARN_ALL and self._seen % LEARN_EVERY:
            return
        fields = request.fields
        whole = not request.goes_on  # else the prompt is a conversation that is not in the request
        if whole and 0 < usage.prompt_tokens <= MAX_LEARNED and given_tokens(request) is None:
            size = text_bytes(request)
            if size >= _LEARN_FROM and not request.media.tokens:
                self._tokens = self._tokens * _FORGET + usage.prompt_tokens
                self._bytes = self._bytes * _FORGET + size
                self._per_byte = self._tokens / self._bytes
        if request.path not in WITHOUT_OUTPUT and token_limit(fields) is None:
            self._output_tokens = self._output_tokens * _FORGET + usage.completion_tokens / outputs(fields)
            self._count = self._count * _FORGET + 1
            self._output = int(self._output_tokens / self._count)


def text_bytes(request: ClientRequest) -> int:
    """The size of a request's JSON without the pictures and sounds in it."""
    return len(request.body) - request.added_bytes - request.media.file_bytes


def rough_tokens(request: ClientRequest) -> int:
    """Tokens of the prompt, at a glance."""
    media = request.media
    return (len(request.body) - media.file_bytes) // 4 + media.tokens


def given_tokens(request: ClientRequest) -> int | None:
    """The number of tokens of a prompt that came as tokens already; None for text."""
    prompt = _prompt_field(request)
    if not prompt or not _IDS.match(prompt):
        return None
    omitted = request.abridged.omitted_numbers if request.abridged is not None else 0
    return count(prompt, b",") + 1 + omitted


def _prompt_field(request: ClientRequest) -> msgspec.Raw:
    """The field that an engine takes for the prompt, where it is not messages; it ignores the others."""
    fields, path = request.fields, request.path
    if path == paths.COMPLETIONS:
        return fields.prompt
    if path in (paths.RESPONSES, paths.INPUT_TOKENS, paths.EMBEDDINGS):
        return fields.input
    return ABSENT if fields.has_messages else fields.prompt or fields.input
