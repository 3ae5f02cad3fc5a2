"""Removes from a text what looks like a credential: in URLs, headers and flags, after names of secrets, and tokens of a
known form."""

from __future__ import annotations

import re
from typing import Final

from blade_operator.secret_names import hide_tokens, is_secret_name

REDACTED: Final = "<redacted>"
_NAME: Final = r"[A-Za-z][A-Za-z0-9_.-]{0,80}"
_HEADER: Final = r"(?i)\b((?:proxy-)?authorization\\?[\"']?\s{0,8}[:=]\s{0,8}\\?[\"']?)(?:[A-Za-z]+ +)?[^\s\"',;\\]+"
_PATTERNS: Final = (
    (re.compile(_HEADER), r"\1" + REDACTED),
    (re.compile(r"(?i)\b((?:bearer|basic) +)[A-Za-z0-9._~+/=-]{6,}"), r"\1" + REDACTED),
    (re.compile(r"(?im)^(.*\b(?:set-)?cookie: ).*$"), r"\1" + REDACTED),
    # user:password@ in URLs
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,20}://)[^\s/?#@\"'<>]+@"), r"\1" + REDACTED + "@"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), REDACTED),
)
_QUERY: Final = re.compile(rf"([?&])({_NAME})(=)([^\s&#\"'<>]+)")
"""A parameter of a URL."""
_QUOTED: Final = re.compile(rf"(?<![\w.-])({_NAME})([\"']?\s{{0,8}}[:=]\s{{0,8}})(?=[\"'])")
"""Before a value in quotes: ``"name": `` and ``name=``."""
_IN_QUOTES: Final = re.compile(r"([\"'])((?:\\.|(?!\1).)+)\1", re.DOTALL)
_PLAIN: Final = re.compile(rf"(?<![\w.-])(-{{0,2}}{_NAME})(\\?[\"']?\s?[:=]\s?\\?[\"']?|\s{{1,8}})")
"""Before a value without: ``name=``, ``name: `` and ``--name ``."""
_WORD: Final = re.compile(r"()([^\s\"',;&}\])\\:=][^\s\"',;&}\])\\]*)")


def redact_text(text: str) -> str:
    """``text`` without what looks like a credential."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    text = hide_tokens(text, REDACTED)
    text = _QUERY.sub(_parameter, text)
    text = _hide_values(text, _QUOTED, _IN_QUOTES)
    return _hide_values(text, _PLAIN, _WORD)


def _parameter(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}={REDACTED}" if is_secret_name(match[2]) else match[0]


def _hide_values(text: str, head: re.Pattern[str], value: re.Pattern[str]) -> str:
    """``text`` without the second group of each ``value`` that comes right after a ``head`` with a secret's name.

    Where the name is another, the search goes on right behind it: ``see: token=abc``.
    """
    parts, done, position = list[str](), 0, 0
    while match := head.search(text, position):
        spoken = match[2].isspace() and not match[1].startswith("--")
        found = None if spoken or not is_secret_name(match[1]) else value.match(text, match.end())
        if found is None or found[2].startswith(REDACTED):
            position = match.end(1)
            continue
        parts += [text[done : found.start(2)], REDACTED]
        done = position = found.end(2)
    return "".join([*parts, text[done:]])
