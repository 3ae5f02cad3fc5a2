"""Limits of one grammar spec. Both processes use the same figures: the API server refuses what would not compile.

Sizes bound what llguidance has to read, its own limits bound what it makes of it, and a time limit is the last line:
work in threads cannot be interrupted, only abandoned.
"""

from __future__ import annotations

from typing import Final

import llguidance

MAX_CHARACTERS: Final = {"json": 262_144, "regex": 16_384, "choice": 262_144, "grammar": 262_144}
"""Kind of a grammar spec → most characters of its text."""
MAX_DEPTH: Final = 60
"""Levels of a JSON Schema, counted in objects and lists of its text (llguidance's reader stops at 128)."""
MAX_OBJECT_PROPERTIES: Final = 1_000
"""Properties of one object. Compiling is quadratic in the optional ones."""
MAX_PROPERTIES: Final = 5_000
"""Properties in all of a schema."""
MAX_PATTERN_PROPERTIES: Final = 50
"""Patterns in one ``patternProperties``: every pair is checked for overlap."""
MAX_RULES: Final = 2_000
"""Rules and terminals of a grammar together."""
MAX_LENGTHS: Final = 10_000
"""Characters that all different bounds of strings add up to. A lexer needs 9 states for each."""
COMPILE_SECONDS: Final = 5.0
"""Time limit of compiling a grammar spec."""
OUTPUT_SECONDS: Final = 2.0
"""CPU time that masks and the like of one output may take on top of the share of each of its tokens."""
TOKEN_SECONDS: Final = 0.01
"""A token's share. Usual grammars take a small part of it (``mask`` in what ``python -m benchmarks.engine.guided``
prints); ambiguous grammars may take more with every token."""

STEP_LIMIT_ADVICE: Final = "simplify the schema, expression or grammar"


def parser_limits() -> llguidance.LLParserLimits:
    """llguidance's own, all stated: fuel is work."""
    return llguidance.LLParserLimits(
        max_items_in_row=2_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=100_000,
        max_grammar_size=500_000,
        precompute_large_lexemes=True,
        verbose_errors=False,  # else a message carries the whole grammar spec
    )
