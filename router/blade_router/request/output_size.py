"""How many outputs a request asks for, and of what size.

Apart from the type of its fields, whose module cannot be compiled: a queue asks for it with each request.
"""

import re
from typing import Final

import msgspec

from blade_router.request.fields import RoutingFields

MAX_COUNTED: Final = 16 << 10
"""Elements of a list that are counted one by one."""
_CHUNK: Final = 64 << 10
_PROMPTS: Final = re.compile(rb"\s*\[\s*[\"\[]")
"""A list of texts, or of lists of tokens; one of numbers is a single prompt."""
_LISTS: Final = re.compile(rb"\s*\[\s*\[")
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def token_limit(fields: RoutingFields) -> int | None:
    """The most tokens one output may have, where the request says it; of several the highest, as APIs differ."""
    limit = fields.max_completion_tokens
    for other in (fields.max_tokens, fields.max_output_tokens):
        if other is not None and (limit is None or other > limit):
            limit = other
    return limit if limit is None or limit > 0 else 0


def samples(fields: RoutingFields) -> int:
    """How many outputs are generated for each prompt, those of a beam search included that are not shown."""
    found = 1
    for wanted in (fields.n, fields.best_of, fields.beam_width):
        if wanted is not None and wanted > found:
            found = wanted
    return found


def outputs(fields: RoutingFields) -> int:
    """How many outputs are generated for all prompts; at least so many, where their list is long."""
    prompts = 1
    if fields.prompt and _PROMPTS.match(fields.prompt):
        prompts = _length(fields.prompt)
    return prompts * samples(fields)


def _length(values: msgspec.Raw) -> int:
    """Elements of a list of texts or of lists; an upper bound, where they are too many to be counted."""
    if len(values) > MAX_COUNTED:
        if _LISTS.match(values):
            bound = count(values, b"[") - 1
        else:
            bound = min(count(values, b",") + 1, count(values, b'"') // 2)
        if bound > MAX_COUNTED:
            return bound
    return len(_decode_list(values))


def count(value: msgspec.Raw, byte: bytes) -> int:
    """How often a byte occurs in a value, without a copy of it."""
    view = memoryview(value)
    return sum(bytes(view[start : start + _CHUNK]).count(byte) for start in range(0, len(view), _CHUNK))
