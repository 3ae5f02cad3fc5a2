"""What an answer must look like, as it travels from the front process to the engine. No torch."""

from __future__ import annotations

from typing import Literal

import msgspec


class Structure(msgspec.Struct, frozen=True, array_like=True):
    """A constraint on the whole answer. Equal ones share one compiled grammar."""

    kind: Literal["json", "regex", "choice", "grammar"]
    value: str
    """``json``: a JSON Schema, as JSON text; ``regex``: the expression; ``choice``: a JSON list of strings;
    ``grammar``: a context-free grammar in Lark's syntax as llguidance reads it."""
