"""Checks of a grammar spec by its text alone.

Cheap, and the same in the API server and in the engine, which offline callers reach without an API server.
"""

from __future__ import annotations

from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided import limits
from blade_llm.sampling.guided.errors import GrammarSpecError
from blade_llm.sampling.guided.lark import check_recursion, embedded_schemas
from blade_llm.sampling.guided.lengths import TextLengths
from blade_llm.sampling.guided.prepare import without_options
from blade_llm.sampling.guided.schema import check_schema
from blade_llm.sampling.guided.text import choices, schema_of


def check_text(spec: GrammarSpec) -> tuple[str, ...]:
    """Raise :class:`GrammarSpecError` for limits that are exceeded, unsupported keywords, and endless recursion.

    Returns the places in a JSON Schema that outputs are not held to.
    """
    kind, text = spec.kind, spec.value
    if len(text) > limits.MAX_CHARACTERS[kind]:
        raise GrammarSpecError(f"has {len(text)} characters; the limit is {limits.MAX_CHARACTERS[kind]}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GrammarSpecError("contains a lone surrogate, which is no character") from None
    match kind:
        case "json":
            return check_schema(without_options(schema_of(text)))
        case "choice":
            choices(spec)
        case "grammar":
            lengths = TextLengths()
            for schema in embedded_schemas(text):
                check_schema(without_options(schema), lengths)
            check_recursion(text)
    return ()
