"""What is known to be wrong with a structure from its text alone.

Cheap, and the same in the front and in the engine, which offline callers reach without a front.
"""

from __future__ import annotations

from blade_llm.sampling.guided import limits
from blade_llm.sampling.guided.errors import StructureError
from blade_llm.sampling.guided.lark import check_recursion, embedded_schemas
from blade_llm.sampling.guided.lengths import TextLengths
from blade_llm.sampling.guided.schema import check_schema
from blade_llm.sampling.guided.text import choices, schema_of
from blade_llm.sampling.structure import Structure


def check_text(structure: Structure) -> None:
    """Raise :class:`StructureError` for limits that are exceeded, keywords nobody follows, and endless recursion."""
    kind, text = structure.kind, structure.value
    if len(text) > limits.MAX_CHARACTERS[kind]:
        raise StructureError(f"has {len(text)} characters; the limit is {limits.MAX_CHARACTERS[kind]}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise StructureError("contains a lone surrogate, which is no character") from None
    match kind:
        case "json":
            check_schema(schema_of(text))
        case "choice":
            choices(structure)
        case "grammar":
            lengths = TextLengths()
            for schema in embedded_schemas(text):
                check_schema(schema, lengths)
            check_recursion(text)
