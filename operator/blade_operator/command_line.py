"""The command lines of both programs: argparse with errors on one line, the types of their options, and how what comes
from a cluster is printed without commanding the terminal."""

from __future__ import annotations

import argparse
import difflib
import ipaddress
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

_CHOICE = re.compile(r"argument (?:COMMAND|command): invalid choice: '([^']*)'")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 but for tab and line feed, DEL, C1, what changes the direction of text or ends a line, and halves of pairs."""
_ESCAPES = {"\x1b": "\\e", "\r": "\\r", "\x07": "\\a", "\x08": "\\b"}


class Parser(argparse.ArgumentParser):
    """Errors on one line, with the nearest command or option for one that does not exist."""

    root: Parser | None = None
    """The parser of the whole program, whose commands and options are suggested. Set by `finish`."""
    _is_intermixed = False

    def finish(self) -> Parser:
        """Make this the root of all parsers below it; returns itself."""
        for parser in self.tree():
            parser.root = self
        return self

    def tree(self) -> Iterator[Parser]:
        """This parser and all of its commands', theirs included."""
        yield self
        for parser in self.commands().values():
            yield from parser.tree()

    def commands(self) -> dict[str, Parser]:
        """The parsers of its commands, by name."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return dict(action.choices)
        return {}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse's, but a command's arguments may stand between and behind its options, as kubectl's may."""
        if self._is_intermixed or self.commands():
            return super().parse_known_args(args, namespace)
        self._is_intermixed = True  # what argparse has for this calls this method
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixed = False

    def options(self) -> list[str]:
        """Its options, as they are typed."""
        return [option for action in self._actions for option in action.option_strings]

    def error(self, message: str) -> NoReturn:
        """Print ``message`` and exit with 2."""
        root = self.root or self
        if match := _CHOICE.match(message):
            own = match[1] in root.commands()
            known = {name for parser in root.tree() for name in parser.commands()}
            near = f"; it is a command of its own: {root.prog} {match[1]}" if own else _nearest(match[1], known)
            message = f"unknown command {match[1]!r}{near}"
        elif message.startswith("unrecognized arguments: "):
            word = message.removeprefix("unrecognized arguments: ").split()[0]
            options = {option for parser in root.tree() for option in parser.options()}
            message = f"unknown option or argument {word!r}{_nearest(word.partition('=')[0], sorted(options))}"
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def port(text: str) -> int:
    """A port from 1 to 65535."""
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: use 1 to 65535")
    return int(text)


def port_or_none(text: str) -> int:
    """A port, or 0 for none."""
    return 0 if text == "0" else port(text)


def positive(text: str) -> int:
    """A number from 1 up."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def names(text: str) -> list[str]:
    """Names with commas between."""
    return [name for name in (part.strip() for part in text.split(",")) if name]


def variable(text: str) -> tuple[str, str]:
    """``NAME=VALUE``."""
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def labels(text: str) -> dict[str, str]:
    """``NAME=VALUE,...``."""
    pairs = [part.partition("=") for part in names(text)]
    if wrong := next((name for name, sign, _ in pairs if not name or not sign), None):
        raise argparse.ArgumentTypeError(f"{wrong!r} is not a label: use NAME=VALUE, several with commas")
    return {name: value for name, _, value in pairs}


def addresses(text: str) -> tuple[tuple[str, int], ...]:
    """``CIDR:PORT,...``."""
    found = []
    for part in names(text):
        cidr, _, number = part.rpartition(":")
        try:
            network = ipaddress.ip_network(cidr)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{part!r} is not CIDR:PORT, such as 10.0.0.1/32:6443: {error}") from None
        found.append((str(network), port(number)))
    return tuple(found)


def count(text: str) -> int:
    """A number from 0 up."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return int(text)


def _nearest(word: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def safe(text: object) -> str:
    """``text`` without anything that a terminal obeys: control characters become their codes, such as ``\\e``."""
    return _CONTROL.sub(lambda match: _ESCAPES.get(match[0], _code(match[0])), str(text))


def one_line(text: object) -> str:
    """`safe`, with line feeds and tabs as blanks."""
    return safe(" ".join(str(text).replace("\r\n", "\n").split()))


def _code(character: str) -> str:
    return f"\\x{ord(character):02x}" if ord(character) < 0x100 else f"\\u{ord(character):04x}"
