"""Grammars in EBNF, rewritten in llguidance's Lark."""

from blade_llm.api.generation.ebnf.lark import lark_of_ebnf as lark_of_ebnf
from blade_llm.api.generation.ebnf.reader import EbnfError as EbnfError
from blade_llm.api.generation.ebnf.reader import is_ebnf as is_ebnf
