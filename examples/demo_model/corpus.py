"""What the demo model knows: short facts read from the documentation that ships with the interpreter.

A demonstration needs answers that a newcomer can judge at once and text that needs no download and no licence question.
Python brings both: docstrings of the built-ins and of the standard library, and the language reference in
`pydoc_data.topics`. This module turns them into `Fact`s: a name, its kind, and one or two complete sentences.
The text is copyright Python Software Foundation (see NOTICE).
"""

import ast
import builtins
import importlib.util
import inspect
import pydoc_data.topics
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["function", "method", "exception", "module", "statement"]

MAX_ANSWER = 210
"""Longest answer in characters: a small model learns short texts by heart, long ones only in part."""

FUNCTIONS = """
abs aiter all any ascii bin bool breakpoint callable chr classmethod compile complex delattr dir divmod
enumerate eval exec filter float format frozenset getattr globals hasattr hash hex id input int isinstance issubclass
iter len list locals map max memoryview min next oct open ord pow print range repr reversed round set setattr slice
sorted staticmethod str sum tuple type vars zip
"""

METHODS = {
    str: """capitalize casefold center count encode endswith find format index isalnum isalpha isdigit islower isspace
    isupper join ljust lower lstrip partition removeprefix removesuffix replace rjust rsplit rstrip split splitlines
    startswith strip swapcase title translate upper zfill""",
    list: "append clear copy count extend index insert pop remove reverse sort",
    dict: "clear fromkeys get items keys pop popitem setdefault values",
    set: "add difference discard intersection isdisjoint issubset issuperset symmetric_difference union",
}

MODULES = """
abc argparse array base64 bisect calendar cmath collections colorsys configparser contextlib copy csv ctypes
difflib dis email fnmatch fractions functools gc getpass gettext glob gzip hashlib heapq hmac html inspect io ipaddress
itertools json locale logging math mimetypes numbers operator pickle platform pprint queue random re sched secrets
select shlex shutil smtplib socket sqlite3 ssl statistics string struct subprocess sys sysconfig tarfile tempfile
textwrap threading time timeit tokenize traceback types typing unicodedata unittest uuid warnings weakref webbrowser
xml zipfile zlib
"""

STATEMENTS = """
assert break class continue for global if import lambda nonlocal pass raise return try while with yield in
"""
SECTIONS = {word: word for word in STATEMENTS.split()} | {"def": "function", "async def": "async"}
"""Keyword -> its section of the language reference."""

EXCEPTIONS = [
    name
    for name in dir(builtins)
    if isinstance(getattr(builtins, name), type)
    and issubclass(getattr(builtins, name), Exception)
    and not issubclass(getattr(builtins, name), Warning)
    and getattr(builtins, name).__name__ == name  # leaves out aliases such as IOError
]

_SIGNATURE = re.compile(r"^[\w.]+\(.*?\)\s*(?:-+>\s*(?P<result>.*))?$")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'])")
_MARKUP = re.compile(r"\*([A-Za-z ]+)\*|\s<https?://[^>]+>|\s\(see [^)]+\)")
_VERBS = """
add append build call change clear compare compile compute concatenate construct convert create decode define delete do
encode execute extend evaluate find format get import insert iterate join list make open pad partition print produce
raise read remove replace report return reverse round run set sort split store strip test update
"""


@dataclass(frozen=True)
class Fact:
    """One thing the model knows: `answer` is one or two complete sentences about `name`."""

    kind: Kind
    name: str
    answer: str


def facts() -> list[Fact]:
    """Every fact of this interpreter's documentation, in a fixed order."""
    return [*_functions(), *_methods(), *_exceptions(), *_modules(), *_statements()]


def _functions() -> Iterator[Fact]:
    for name in FUNCTIONS.split():
        text = _summary(inspect.getdoc(getattr(builtins, name)) or "")
        if text:
            yield Fact("function", name, _about(f"The built-in {name}()", text))


def _methods() -> Iterator[Fact]:
    for owner, names in METHODS.items():
        for name in names.split():
            text = _summary(inspect.getdoc(getattr(owner, name)) or "")
            if text:
                yield Fact("method", f"{owner.__name__}.{name}", _about(f"The method {owner.__name__}.{name}()", text))


def _exceptions() -> Iterator[Fact]:
    for name in EXCEPTIONS:
        text = _summary(inspect.getdoc(getattr(builtins, name)) or "")
        if text:
            yield Fact("exception", name, f"{name} is a built-in exception: {_lower_first(text)}")


def _modules() -> Iterator[Fact]:
    for name in MODULES.split():
        text = _summary(_module_docstring(name))
        text = re.sub(rf"^(Module {name} --|{name}(\.py| module) -|The {name} module:) ", "", text)
        if text.startswith(f"The {name} "):
            yield Fact("module", name, text)
        elif text.startswith("This module "):
            yield Fact("module", name, f"The {name} module {text.removeprefix('This module ')}")
        elif text:
            yield Fact("module", name, _quoted(f"The {name} module", text))


def _statements() -> Iterator[Fact]:
    for keyword, topic in SECTIONS.items():
        paragraphs = pydoc_data.topics.topics.get(topic, "").split("\n\n")[1:]
        for paragraph in paragraphs:
            text = _first_sentences(paragraph)
            if text and text[0].isupper() and not re.search(r"::=|\*\*\*|===|New in version|Added in version", text):
                yield Fact("statement", keyword, text)
                break
            if text.startswith(f'"{keyword}" '):
                yield Fact("statement", keyword, text)
                break


def _module_docstring(name: str) -> str:
    """The docstring of a module, from its source where there is one: importing it could have side effects."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.has_location and spec.origin is not None and spec.origin.endswith(".py"):
        return ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return inspect.getdoc(importlib.import_module(name)) or ""


def _summary(docstring: str) -> str:
    """The first sentences of a docstring, without the signatures some of them begin with."""
    paragraphs = docstring.split("\n\n")
    result = ""
    for paragraph in paragraphs:
        lines = paragraph.strip().split("\n")
        while lines and (match := _SIGNATURE.match(lines[0])):
            result = result or (match["result"] or "")
            lines.pop(0)
        text = _first_sentences("\n".join(lines))
        if text:
            return text
    if not result:
        return ""
    first, comma, rest = result.partition(", ")
    if comma and first.isidentifier() and len(first) <= 2:  # "v, remove specified key and return …"
        return _first_sentences(rest[0].upper() + rest[1:])
    return _first_sentences("Return " + ("a " if result.startswith("new ") else "") + result)


def _first_sentences(paragraph: str) -> str:
    """As many whole sentences as make a short answer, ended by a full stop; empty for examples and grammar."""
    text = _MARKUP.sub(r"\1", " ".join(paragraph.split()))
    if text.startswith(">>>"):
        return ""
    answer = ""
    for sentence in _SENTENCE_END.split(text):
        if answer and (len(answer) > 60 or len(answer) + len(sentence) > MAX_ANSWER):
            break
        answer = f"{answer} {sentence}".strip()
    if len(answer) > MAX_ANSWER:
        answer = answer[:MAX_ANSWER].rpartition(",")[0]
    answer = answer.rstrip(":;,")
    return answer if not answer or answer[-1] in ".!?" else answer + "."


def _about(subject: str, text: str) -> str:
    """Join subject and docstring: "Return the number …" becomes "SUBJECT returns the number …"."""
    told: list[str] = []
    for sentence in _SENTENCE_END.split(text):
        verb, _, rest = sentence.partition(" ")
        if verb.lower().removesuffix("s") not in _VERBS.split():
            if not told:
                return _quoted(subject, text)
            told.append(sentence)
        else:
            rest = re.sub(r"\b(and|or) (return|remove)\b", r"\1 \2s", rest)
            told.append(f"{'It' if told else subject} {_third_person(verb.lower())} {rest}")
    return " ".join(told)


def _quoted(subject: str, text: str) -> str:
    return f'{subject} is documented as "{text}"'


def _third_person(verb: str) -> str:
    if verb.endswith("s"):
        return verb
    if verb.endswith(("ch", "sh", "x", "o")):
        return verb + "es"
    if verb.endswith("y"):
        return verb[:-1] + "ies"
    return verb + "s"


def _lower_first(text: str) -> str:
    """Lower the first letter of an ordinary word; leave names such as "I/O" alone."""
    return text[0].lower() + text[1:] if text[1:2].islower() else text
