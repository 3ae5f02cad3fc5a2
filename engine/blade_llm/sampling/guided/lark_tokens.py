"""A grammar's text in pieces, in time linear in its length: it is a client's, and ``re`` lets no other thread run.

Every pattern begins with a character of its own and gives nothing back that it has taken (``*+``), or what it gives
back no other token reads again. What would be read again and again, a string that nothing closes, ends the reading:
llguidance refuses such a text whatever follows.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from blade_llm.sampling.guided.errors import GrammarSpecError

_PATTERNS: Final = {
    "newline": r"\n",
    "space": r"[^\S\n]++|//[^\n]*+|\#[^\n]*+",
    # one pass; fails only where the text or the line ends in it, and then `unclosed` takes all that is left
    "string": r'"(?:[^"\\\n]++|\\.)*+"i?',
    # the white space is read a second time where no bracket follows
    "json": r"%json\s*+(?=\{)",
    "directive": r"%\w++",
    # as strings, but over several lines
    "regex": r"/(?:[^/\\]++|\\(?s:.))++/\w*+",
    "unclosed": r'["/](?s:.)*+',
    # up to the next bracket at most, where another attempt may begin
    "special": r"<[^<>\n]*+>",
    # what may stand in it comes in this order once, and a digit decides: white space is tried in one place only
    "repeat": r"\{\s*+(?:\d++\s*+)?(?:,\s*+(?:\d++\s*+)?)?\}",
    "name": r"[A-Za-z_][\w-]*+",
    "alias": r"->\s*+\w++",
    "operator": r".",
}
"""Kind → how it is written; the first that fits counts."""
_TOKEN: Final = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _PATTERNS.items()))


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    start: int
    value: Any = None
    """A schema, for ``json``."""


def read_tokens(text: str) -> list[Token]:
    """``text`` up to its end or to a string that is not closed. Raises :class:`GrammarSpecError` for broken JSON."""
    found, position = [], 0
    decoder = json.JSONDecoder()
    while match := _TOKEN.match(text, position):
        kind, end, value = str(match.lastgroup), match.end(), None
        if kind == "json":
            try:
                value, end = decoder.raw_decode(text, match.end())
            except (ValueError, RecursionError) as error:  # not gone on from: each failure counts the lines before it
                raise GrammarSpecError(f"%json is not followed by valid JSON: {error}") from None
        found.append(Token(kind, text[match.start() : end], match.start(), value))
        position = end
    return found
