"""Why a request that OpenAI's specification allows may be refused here: every reason there is, each for one message.

A field that ``docs/compatibility.md`` lists as refused is such a reason with the very words of the code. The others are
below: parts of a field that are not supported, fields that the specification itself forbids together (in words, which a
test looks up there), and what cannot be done at all. A run over thousands of requests meets each of them.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from blade_llm.server.compatibility import rows


class Reason(NamedTuple):
    """A refusal that is right."""

    param: str | None
    message: str
    """Regular expression for the whole message."""
    code: str | None = None
    status: int = 400
    words: str = ""
    """Where the specification says the same, from its description of the field."""


_ROWS: Final = tuple(rows())
_ANY: Final = r"(?s:.*)"
_PLACE: Final = r"\[\d+\]"
UNSUPPORTED: Final = (
    Reason(
        "messages",
        rf"messages{_PLACE}\.content{_PLACE}: (image_url|input_audio|file) is not supported by this model; send text",
    ),
    Reason("messages", rf"messages{_PLACE}: role function is the older form of role tool; send that"),
    Reason("messages", rf"messages{_PLACE}: function_call is the older form of tool_calls; send those"),
    Reason("input", rf"input{_PLACE}: items of type '\w+' are not supported"),
    Reason(
        "input",
        rf"input{_PLACE}\.(content|output){_PLACE}: (input_image|input_file) is not supported by this model; send text",
    ),
    Reason(
        "input",
        rf"input{_PLACE}\.(content|output){_PLACE}: file_id is not supported, as no files are kept here; {_ANY}",
    ),
    Reason(
        "input",
        rf"input{_PLACE}\.content{_PLACE}: images belong to messages of the user and to outputs of calls, "
        r"not to role (system|developer|assistant)",
    ),
    Reason("tools", rf"tools{_PLACE}(\.tools{_PLACE})?: defer_loading is not supported; leave it out"),
    Reason("tool_choice", rf"tool_choice: '\w+' cannot be called, as no tool runs on the server; {_ANY}"),
    Reason("stream", r"stream: a response that has ended is not streamed again; leave it out"),
)
"""Parts of fields. Their code is ``unsupported``."""
FORBIDDEN: Final = (
    Reason(
        "top_logprobs",
        r"top_logprobs needs logprobs: true",
        words="`logprobs` must be set to `true` if this parameter is used.",
    ),
    Reason("stream_options", r"stream_options needs stream: true", words="Only set this when you set `stream: true`."),
    Reason("best_of", r"best_of must be at least n, which is \d+", words="`best_of` must be greater than `n`"),
    Reason("best_of", r"best_of above n cannot be streamed: the best is known at the end", words="cannot be streamed"),
    Reason("input", r"input must not be empty", words="cannot be an empty string"),
    Reason("suffix", rf"this model cannot fill in: {_ANY}", words="only supported for"),
    Reason("metadata", rf"metadata: Expected `str` of length <= 64 {_ANY}", words="maximum length of 64 characters"),
    Reason("dimensions", r"dimensions must be at most \d+, the model's hidden size", words="Only supported in"),
)
"""What the specification forbids too."""
IMPOSSIBLE: Final = (
    Reason("prompt", r"prompt must not be empty|'prompt' is required"),
    Reason("input", r"input holds no text, and nothing else that a model could answer"),
    Reason("input", rf"input{_PLACE}\.(content|output){_PLACE}\.image_url must be a string, {_ANY}"),
    Reason("suffix", r"suffix with echo is not possible: the answer stands between two texts"),
    Reason(
        "tools", rf"tools{_PLACE}(\.tools{_PLACE})?: there is another function of the name '[\w-]+'; names must differ"
    ),
    Reason("tool_choice", r"tool_choice asks for a call, but there are no tools; add tools"),
    Reason("tool_choice", r"tool_choice needs tools"),
    Reason("tool_choice", rf"tool_choice: {_ANY} is not among tools"),
    Reason("tool_choice", rf"tool_choice names {_ANY}, which is not among the tools"),
    Reason("input", rf"input{_PLACE}: Item with id {_ANY} not found: {_ANY}", "item_not_found"),
    Reason(
        "previous_response_id", rf"Previous response with id {_ANY} not found: {_ANY}", "previous_response_not_found"
    ),
    Reason(None, rf"Response with id {_ANY} not found\.", status=404),
    Reason("after", r"after must be the id of one of the items"),
    Reason(None, rf"Only a response that was created with background set to true can be cancelled, {_ANY}"),
    Reason("tools", rf"tools(\.\d+)+(\.function)?\.parameters: regular expression: {_ANY}"),
    Reason(
        "model", rf"The model `{_ANY}` does not exist or you do not have access to it; {_ANY}", "model_not_found", 404
    ),
)
"""Contradictions, and what is not there."""
REASONS: Final = (*(each._replace(code="unsupported") for each in UNSUPPORTED), *FORBIDDEN, *IMPOSSIBLE)


def table(path: str) -> dict[str, str]:
    """The fields that the compatibility table refuses on a route → the whole message."""
    found = (row for row in _ROWS if row.route.partition(" ")[2] == path and row.status == "refused")
    return {row.field: f"{row.field!r} is not taken: {row.note}" for row in found}


def fields_here(path: str) -> set[str]:
    """All fields of the compatibility table on a route."""
    return {row.field for row in _ROWS if row.route.partition(" ")[2] == path}


def reason_of(path: str, status: int, error: dict[str, Any]) -> Reason | str | None:
    """Why a request was refused: one of :data:`REASONS`, or a field of the table; None for no reason that is right."""
    param, code, message = error["param"], error["code"], error["message"]
    if status == 400 and code == "unsupported" and param is not None and table(path).get(param) == message:
        return str(param)
    for reason in REASONS:
        if (status, param, code) == (reason.status, reason.param, reason.code) and re.fullmatch(
            reason.message, message
        ):
            return reason
    return None
