"""Grammars of outputs that hold reasoning, calls and content, in llguidance's Lark syntax.

A grammar begins where the output begins, so a structure set for the content is put behind the reasoning, and calls
are written in the very form that the model was taught and the parser reads. Markers that are single tokens stand as
these tokens: no text can be mistaken for them.
"""

from __future__ import annotations

from blade_llm.api.tools.grammar.arguments import ArgumentsError as ArgumentsError
from blade_llm.api.tools.grammar.structural_tags import tag_writer as tag_writer
from blade_llm.api.tools.grammar.structure import output_structure as output_structure
