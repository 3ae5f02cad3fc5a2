"""What looks like a secret: names of variables, flags and fields with one for a value, and tokens of a known form."""

from __future__ import annotations

import itertools
import re
from functools import lru_cache
from typing import Final

_WORDS: Final = (
    *("password", "passwd", "passphrase", "pwd", "secret", "token", "apikey", "accesskey", "privatekey", "secretkey"),
    *("credential", "credentials", "auth", "authorization", "bearer", "cookie", "signature", "sig", "sas"),
)
_PAIRS: Final = frozenset({"api", "access", "private", "secret", "signing", "encryption", "account", "ssh", "hmac"})
"""What makes a ``key`` a secret one."""
_PLACES: Final = frozenset({"file", "path", "dir", "folder", "name", "url", "ref", "claim"})
"""Endings of the names of what only says where a secret is."""
_SPLIT: Final = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_TOKEN: Final = re.compile(
    r"\b(?:(?:hf|gh[opsu])_|glpat-|xox[abprs]-|github_pat_|(?:sk|pk)[_-](?=[a-z0-9_-]*[A-Z]))[A-Za-z0-9_-]{16,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"
)
"""Tokens of a known form: hubs', OpenAI's, GitHub's, GitLab's, Slack's, AWS's, JWTs. None is a name in Kubernetes."""
_BEGINNINGS: Final = (
    *("hf_", "gho_", "ghp_", "ghs_", "ghu_", "glpat-", "xox", "github_pat_", "sk", "pk", "AKIA", "ASIA", "eyJ"),
)
_SHORTEST: Final = 19
"""Beginnings of these tokens, and the least length: what has none of either, as most texts, needs no search."""


@lru_cache(4096)
def is_secret_name(name: str) -> bool:
    """Whether a variable, flag or field of that name has a secret for a value: by the words in it."""
    words = words_of(name)
    if not words or words[-1] in _PLACES:
        return False
    if any(word in _WORDS for word in words):
        return True
    return any(one in _PAIRS and other in ("key", "keys") for one, other in itertools.pairwise(words))


def words_of(name: str) -> list[str]:
    """The words of a name in small letters: ``hf_token`` and ``hfToken`` have two."""
    return [word.lower() for word in _SPLIT.split(name) if word]


def hide_tokens(text: str, hidden: str) -> str:
    """``text`` with ``hidden`` in place of tokens of a known form."""
    if len(text) < _SHORTEST or not any(each in text for each in _BEGINNINGS):
        return text
    return _TOKEN.sub(hidden, text)
