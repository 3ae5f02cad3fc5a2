"""Removes secrets from what is shown or packed up: contents of Secrets, values whose names say that they are secret,
credentials in URLs, headers and flags, and strings that have the form of a known token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from blade_operator.model.objects import Object
from blade_operator.redact_text import REDACTED, redact_text
from blade_operator.secret_names import is_secret_name, words_of

_LAST_WORDS: Final = frozenset({"key", "keys", "pass", "pw", "psk", "salt", "jwt", "pat"})
"""Endings of the names of environment variables with secrets."""


def is_secret_variable(name: str) -> bool:
    """Whether an environment variable of that name has a secret for a value: by `is_secret_name`, or by a last word
    that means something else in other places, as in ``OPENAI_KEY`` and ``DB_PASS``."""
    *before, last = words_of(name) or [""]
    return is_secret_name(name) or (bool(before) and last in _LAST_WORDS)


def redact_words(words: Sequence[str]) -> list[str]:
    """The words of a command line: the value of a flag whose name is a secret's goes, in its word or the next."""
    result, hide = list[str](), False
    for word in words:
        if hide and not word.startswith("--"):
            result.append(REDACTED)
            hide = False
            continue
        name, sign, value = word.partition("=")
        hide = False
        if name.startswith("-") and is_secret_name(name):
            result.append(f"{name}={REDACTED}" if sign and value else word)
            hide = not sign
        else:
            result.append(redact_text(word))
    return result


def redact_object(obj: Any) -> Any:
    """A copy of a Kubernetes object, or a list of them, without secrets; its shape stays."""
    if isinstance(obj, dict) and obj.get("kind") == "Secret":
        return _secret(obj)
    return _redact(obj)


def _redact(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _field(str(key), each, value) for key, each in value.items() if not _copies_spec(str(key))}
    if isinstance(value, list):
        if all(isinstance(each, str) for each in value):  # command, args, extraArgs: a flag and its value are two items
            return redact_words(value)
        return [redact_object(each) for each in value]
    return redact_text(value) if isinstance(value, str) else value


def _field(key: str, value: Any, holder: Object) -> Any:
    if _is_variable(key, holder) or is_secret_name(key):
        if isinstance(value, str) and value:
            return REDACTED
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return [REDACTED] * len(value)
    return _redact(value)


def _is_variable(key: str, holder: Object) -> bool:
    """Whether this is the value of an environment variable whose name is a secret's."""
    return key == "value" and isinstance(holder.get("name"), str) and is_secret_variable(holder["name"])


def _copies_spec(key: str) -> bool:
    return key == "kubectl.kubernetes.io/last-applied-configuration" or key == "managedFields"


def _secret(obj: Object) -> Object:
    body = {key: value for key, value in obj.items() if key not in ("data", "stringData")}
    hidden = {
        field: {key: f"{REDACTED} ({len(str(value))} characters)" for key, value in obj[field].items()}
        for field in ("data", "stringData")
        if isinstance(obj.get(field), dict)
    }
    metadata = dict(body.get("metadata") or {})
    if "annotations" in metadata:
        metadata["annotations"] = dict.fromkeys(metadata["annotations"] or {}, REDACTED)
    return {**_redact({**body, "metadata": metadata}), **hidden}
