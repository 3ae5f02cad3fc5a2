"""Errors of grammar specs, and llguidance's messages made fit for a client."""

from __future__ import annotations

import logging
from typing import Final

from blade_llm.sampling.guided.limits import STEP_LIMIT_ADVICE

logger = logging.getLogger(__name__)

_MAX_CHARACTERS: Final = 500
_OVERLAP: Final = (
    "oneOf is supported only where no value can match two of its cases, such as different types or a required property "
    "with different constant strings; write anyOf"
)


class GrammarSpecError(ValueError):
    """The grammar spec cannot be served; the message says why and is meant for the client."""


class BusyError(Exception):
    """All validating threads are occupied; there may be nothing wrong with the grammar spec."""


def readable(message: str) -> str:
    """The essential part of an llguidance message: no state dump, bounded, with advice where a limit was hit."""
    text = message.split("<state>")[0].replace("<non-verbose/>", "").split("; following special tokens")[0]
    _, quoted, report = text.partition("regex parse error:")  # no expression: what is quoted may be long
    if quoted and (reason := report.rpartition("\nerror: ")[2]) != report:
        return "regular expression: " + reason.partition("\n")[0]
    text = " ".join(text.split(":  (And ")[0].split())
    if text.startswith("oneOf constraints"):
        return _OVERLAP
    text = text.split("; consider making your grammar left-recursive")[0]  # which is refused here
    if len(text) > _MAX_CHARACTERS:
        text = text[:_MAX_CHARACTERS] + " …"
    if any(word in text for word in ("too large", "Too many", "too many", "limit", "fuel", "too complex", "max is ")):
        text += f"; {STEP_LIMIT_ADVICE}"
    return text or f"no answer can satisfy it; {STEP_LIMIT_ADVICE}"


def as_grammar_spec_error(error: BaseException) -> GrammarSpecError:
    """The error for the client whose grammar spec llguidance failed on. Raises what is no failure at all."""
    if isinstance(error, GrammarSpecError):
        return error
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # a failed assertion in Rust
        raise error
    logger.warning("llguidance failed: %r", error)
    return GrammarSpecError(readable(str(error)))
