"""GBNF in Lark's words: the same texts, whatever llguidance's greedy lexer makes of the terminals."""

from __future__ import annotations

import contextlib
import itertools
import re
import time

import llguidance
import pytest

from blade_llm.api.generation.ebnf import EbnfError, is_ebnf, lark_of_ebnf
from blade_llm.sampling.guided.lark import check_recursion

BYTES = llguidance.LLTokenizer("byte")
OF_VLLM = """
root ::= select_statement
select_statement ::= "SELECT " column " from " table " where " condition
column ::= "col_1 " | "col_2 "
table ::= "table_1 " | "table_2 "
condition ::= column "= " number
number ::= "1 " | "2 "
"""
OF_SGLANG = """
root ::= city | description
city ::= "London" | "Paris" | "Berlin" | "Rome"
description ::= city " is " status
status ::= "the capital of " country
country ::= "England" | "France" | "Germany" | "Italy"
"""
ARITHMETIC = r"""
# of llama.cpp's README
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
JSON = r"""
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


def _takes(lark: str, text: str) -> bool:
    matcher = llguidance.LLMatcher(BYTES, lark, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return all(matcher.try_consume_tokens([byte]) for byte in text.encode()) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "texts", "others"),
    [
        (OF_VLLM, ["SELECT col_1  from table_2  where col_2 = 1 "], ["SELECT col_3  from table_2  where col_2 = 1 "]),
        (OF_SGLANG, ["Rome", "Rome is the capital of Italy"], ["Rome is", "Romeo"]),
        (ARITHMETIC, ["a=1\n", "(x1 +2)*y=7\nb=2\n", "a= 1 \n\n\nb=2\n"], ["a=1", "a==1\n", "1a=b\n"]),
        (JSON, ["{}", '{"a": [1, -2.5e3, true], "\\u00e9": {"c": "\u4e2d"}}'], ["[]", '{"a": nul}', '{"a":"\n"}']),
        ('root ::= ("a" | "ab") "bc"', ["abc", "abbc"], ["ab", "abcbc"]),
        ('root ::= [a-z]* "end"', ["end", "endend", "wend"], ["en", "ende"]),
        ('root ::= "ab"* "abc"', ["abc", "ababc"], ["ab", "abab"]),
        ('root ::= x "-b" | y\nx ::= "a-"\ny ::= "a-c"', ["a--b", "a-c"], ["a-b"]),
        ('root ::= ("x" "y"?){2} "yz"{1,2}', ["xxyyz", "xyxyz", "xxyzyz", "xyxyyz"], ["xyz", "xxyzyzyz"]),
        (r'root ::= "\x41\u00e9\U0001F600\"\\\t" [\]\-\[^]',
         ['A\u00e9\U0001f600"\\\t-', 'A\u00e9\U0001f600"\\\t]'], ["A"]),
        ("root ::= [^a-c\\n]+", ["xyz", "\u4e2d"], ["a", "x\n", ""]),
        ("root ::= . .?", ["x", "\n\u00e9"], ["", "abc"]),
        ("root ::= [-a]+ [b-]", ["-b", "a--"], ["bb"]),
        ('root ::= "(" root ")" |', ["", "((()))"], ["(()"]),
        ('root ::= Start.x start\nStart.x ::= "1"\nstart ::= "2"\n_ ::= "3"', ["12"], ["1", "21"]),
        ('root ::= a\na ::= "x" |\n  "y" # of two lines\n  | "z"', ["x", "y", "z"], ["xy"]),
    ],
)  # fmt: skip
def test_the_language_is_the_same(grammar: str, texts: list[str], others: list[str]) -> None:
    lark = lark_of_ebnf(grammar)
    check_recursion(lark)
    assert [text for text in texts if not _takes(lark, text)] == []
    assert [text for text in others if _takes(lark, text)] == []


@pytest.mark.parametrize(
    ("grammar", "expression"),
    [
        ('root ::= ("a" | "ab" | "b")* "ba"?', r"(a|ab|b)*(ba)?"),
        ('root ::= ("aa" | "aba" | [ab] "b")+', r"(aa|aba|[ab]b)+"),
        ('root ::= x y x\nx ::= "ab" | "c"\ny ::= ("abc" | "b")?', r"(ab|c)(abc|b)?(ab|c)"),
        ('root ::= [a-b]{1,3} ("bc" | "c" "a"*)', r"[ab]{1,3}(bc|ca*)"),
    ],
)
def test_every_short_text_against_a_regular_expression(grammar: str, expression: str) -> None:
    lark = lark_of_ebnf(grammar)
    for length in range(7):
        for letters in itertools.product("abc", repeat=length):
            text = "".join(letters)
            assert _takes(lark, text) == bool(re.fullmatch(expression, text)), text


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('start ::= "a"', "no rule 'root'"),
        ('root ::= "a" b', "names 'b', which is not defined"),
        ('root ::= "a"\nroot ::= "b"', "defined twice"),
        ('root ::= ("a"', "not closed"),
        ('root ::= "a")', "was not opened"),
        ('root ::= * "a"', "repeats nothing"),
        ('root ::= "a"{3,2}', "at most 2 and at least 3"),
        ("root ::= []", "no characters"),
        ("root ::= [z-a]", "write a-z"),
        (r'root ::= "\uD800"', "no character"),
        ('root ::= "a" (= "b")', "'= \"b\")' is not understood"),
        ("root ::= <[5]> | !<think>", "not understood"),
        ('root ::= TagDispatch(("a", b))', "xgrammar's own"),
        ('root ::= "a', "line 1"),
        ('"a" ::= "b"', "line 1"),
        ('"a"', "should begin"),
        ('root ::= "a", "b"', "',' is not understood"),
        (f"root ::= {'(' * 500}", "deep"),
    ],
)
def test_what_cannot_be_rewritten_says_why(grammar: str, message: str) -> None:
    with pytest.raises(EbnfError, match=re.escape(message)):
        lark_of_ebnf(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= " + " ".join(f'"word{number}" [a-z]*' for number in range(2_000)),
        "\n".join(["root ::= r0", *(f"r{number} ::= r{number + 1}?" for number in range(3_000)), 'r3000 ::= "x"']),
        "root ::= " + " | ".join(f'"{number:x}"' for number in range(8_000)),
        "root ::= " + "([a-z]+ " * 90 + ")*" * 90,
        "root ::= [a-z]{0,100000}",
        'root ::= "' + "a" * 70_000 + '"',
        'root ::= ("' + "a" * 60_000 + '"){200}',
        'root ::= (""{999999}){999999} "a"',
        "\n".join(
            ['root ::= r0 "a"', *(f"r{number} ::= r{number + 1} r{number + 1}" for number in range(60)), 'r60 ::= ""']
        ),
        'root ::= "a"{1,' + " " * 60_000 + "x",
    ],
)
def test_large_grammars_take_a_bounded_time(grammar: str) -> None:
    begun = time.process_time()
    with contextlib.suppress(EbnfError):
        lark_of_ebnf(grammar)
    assert time.process_time() - begun < 30  # seconds, of a second or two: what is not bounded takes minutes


def test_texts_of_a_grammar_are_few_lexemes() -> None:
    """One character a lexeme would be right as well, and masks of large vocabularies would not be done in time."""
    rules = dict(line.split(": ", 1) for line in lark_of_ebnf(JSON).splitlines())
    for name in ("string", "number"):
        assert re.fullmatch("/[^/]+/", rules[name])


def test_which_is_which() -> None:
    assert is_ebnf(OF_VLLM)
    assert is_ebnf("# x\n  root::= [a]")
    assert not is_ebnf('start: "a ::= b"\n')


def test_lines_are_looked_through_once() -> None:
    begun = time.process_time()
    assert not is_ebnf("\n" * 1_000_000 + "a" + " " * 1_000_000)
    assert time.process_time() - begun < 30  # going back takes hours
    assert not is_ebnf('?start: sum\nsum: NUMBER "::=" NUMBER')
