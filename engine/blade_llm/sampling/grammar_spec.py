"""The grammar spec of a request: what its output must follow, as it travels from the API server to the engine. No
torch."""

from __future__ import annotations

from typing import Literal

import msgspec


class GrammarSpec(msgspec.Struct, frozen=True, array_like=True):
    """A constraint on the whole output. Equal ones share one compiled grammar."""

    kind: Literal["json", "regex", "choice", "grammar"]
    value: str
    """``json``: a JSON Schema, as JSON text; ``regex``: the expression; ``choice``: a JSON list of strings;
    ``grammar``: a context-free grammar in Lark's syntax as llguidance reads it."""
