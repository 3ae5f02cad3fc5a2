"""What a command-line flag is: its values, its default, and whether its feature exists yet.

BladeLLM's flag names are kept whole, so that existing commands stay valid; a flag whose feature is not built yet is
shown in ``--help`` and refused, unless it is given a value that requests nothing.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from blade_telemetry.options import traces_url
from blade_telemetry.sampling import parse_ratio

_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS: Final = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)

_TOKENS: Final = re.compile(r"(\d+|\d+\.\d+(?=[kKmM]))([kKmM])?")
_TOKEN_UNITS: Final = {"": 1, "k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20}
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#]+", re.IGNORECASE)


def boolean(text: str) -> bool:
    """``true``/``false`` and their usual relatives."""
    value = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    try:
        return value[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false") from None


def byte_size(text: str) -> int:
    """``1073741824``, ``1GiB``, ``1Gi`` (binary) or ``1GB``, ``1G`` (decimal)."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size; write bytes, or a number with KiB, MiB, GiB, KB, MB, GB"
        )
    unit = (match[2] or "").lower()
    return int(float(match[1]) * {**_UNITS, **_BINARY_UNITS}[unit])


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def tokens(text: str) -> int:
    """A number of tokens of at least 1: ``4096``, ``32k`` (thousands) or ``32K`` (times 1,024), as vLLM writes it."""
    match = _TOKENS.fullmatch(text.strip())
    number = 0 if match is None else int(float(match[1]) * _TOKEN_UNITS[match[2] or ""])
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1, like 4096 or 32k")
    return number


def count(text: str) -> int:
    """A whole number of at least 0."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def seconds(text: str) -> float:
    """A finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def share(text: str) -> float:
    """A part of a whole: above 0 and at most 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share above 0 and at most 1, like 0.9")
    return value


def ratio(text: str) -> float:
    """From 0 to 1, like ``0.01``."""
    try:
        return parse_ratio(text, "the ratio")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def collector(text: str) -> str:
    """URL of an OpenTelemetry collector, with the path that takes spans."""
    try:
        return traces_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def json_object(text: str) -> dict[str, Any]:
    """A JSON object, like ``{"enable_thinking": false}``."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is not a JSON object like {{"enable_thinking": false}}')
    return value


def named_path(text: str) -> tuple[str, str]:
    """``NAME=PATH``, or vLLM's JSON form ``{"name": ..., "path": ...}``."""
    name, separator, path = text.partition("=")
    if text.lstrip().startswith("{"):
        value = json_object(text)
        name, separator, path = str(value.get("name", "")), "=", str(value.get("path", ""))
    if not (name.strip() and separator and path.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=PATH")
    return name.strip(), path.strip()


def origins(text: str) -> list[str]:
    """A web page's origin, ``*`` for all, or as at vLLM a list of them in JSON."""
    try:
        found = json.loads(text) if text.startswith("[") else [text]
    except ValueError:
        found = [text]
    for origin in found:
        if not (isinstance(origin, str) and (origin == "*" or _ORIGIN.fullmatch(origin))):
            raise argparse.ArgumentTypeError(f"{origin!r} is no origin like https://chat.example.com, nor *")
    return list(found)


def port(text: str) -> int:
    """0 (any free port) to 65535."""
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port between 0 and 65535")
    return int(text)


_ABSENT: Final = object()
"""Stands for a flag that is not given."""
_METAVARS: Final[dict[Callable[[str], Any], str]] = {
    byte_size: "BYTES",
    collector: "URL",
    count: "N",
    float: "NUMBER",
    json_object: "JSON",
    named_path: "NAME=PATH",
    origins: "ORIGIN",
    int: "N",
    port: "PORT",
    positive: "N",
    seconds: "SECONDS",
    share: "SHARE",
    tokens: "N",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag. ``--a b`` and ``--a=b`` both work, and dashes pass for underscores."""

    name: str
    help: str
    kind: Callable[[str], Any] = str
    default: Any = None
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    many: bool = False
    """Takes a space-separated list."""
    required: bool = False
    metavar: str | None = None
    accepts: tuple[Any, ...] | None = None
    """Values that work in this version, beside the default; None: all do."""

    @property
    def option(self) -> str:
        return f"--{self.name}"

    @property
    def value_by_default(self) -> Any:
        """The default; one that is a text is read as a given one is, as argparse does it."""
        return self.kind(self.default) if isinstance(self.default, str) else self.default

    def add_to(self, group: argparse._ArgumentGroup) -> None:
        spelled = (self.option, *self.aliases)
        if "_" in self.name:
            spelled = (*spelled, self.option.replace("_", "-"))
        options: dict[str, Any] = {"dest": self.name, "default": self.default, "help": self._help(), "type": self.kind}
        if self.kind is boolean:
            options |= {"nargs": "?", "const": True, "metavar": "BOOL"}
        elif self.many:
            options |= {"nargs": "+"}
        if self.choices:
            options["metavar"] = "{" + ",".join(self.choices) + "}"
            options["choices"] = self.choices
        else:
            options.setdefault("metavar", self.metavar or _METAVARS.get(self.kind, "NAME"))
        if self.required:
            options["required"] = True
        group.add_argument(*spelled, **options)

    def problem(self, value: Any) -> str | None:
        """Why ``value`` cannot be used in this version."""
        if self.accepts is None or value == self.default or value in self.accepts:
            return None
        given = f"{self.option} {self._spell(value)}"
        off = [self._spell(accepted) for accepted in self.accepts]
        return f"{given} is not available in this version; {'use ' + ' or '.join(off) if off else 'leave it out'}"

    def _spell(self, value: Any) -> str:
        """``value`` as one would type it."""
        if isinstance(value, list):
            return " ".join(map(str, value))
        return str(value).lower() if self.kind is boolean else str(value)

    def _help(self) -> str:
        text = self.help.replace("%", "%%")
        if self.default is not None and not self.required:
            text += f" (default: {self._spell(self.default)})"
        if self.accepts is None:
            return text
        working = ", ".join(self._spell(value) for value in self.accepts if not isinstance(value, bool))
        return text + (f" [works in this version: {working}]" if working else " [not available in this version]")


class FlagParser(argparse.ArgumentParser):
    """Spells its flags with underscores in ``--help`` and names the nearest flag for one it does not know.

    Args:
        positional: the flag whose value may stand alone, too, without ``--NAME``.
    """

    def __init__(
        self,
        program: str,
        description: str,
        groups: Sequence[tuple[str, Sequence[Flag]]],
        *,
        positional: str | None = None,
    ) -> None:
        super().__init__(
            program,
            description=description,
            allow_abbrev=False,
            formatter_class=_Formatter,
            usage="%(prog)s --model DIR [flags]",
        )
        self._flags = {flag.name: flag for _, flags in groups for flag in flags}
        self._positional = positional
        self.given: frozenset[str] = frozenset()
        """Flags that were given, their default's value included."""
        for title, flags in groups:
            group = self.add_argument_group(title)
            for flag in flags:
                flag.add_to(group)
        for action in self._actions:
            action.required = action.required and action.dest != positional

    def parse(self, argv: Sequence[str] | None = None) -> dict[str, Any]:
        """Flag name → value. Exits with 2 and one line on standard error for anything that cannot be used."""
        values, unknown = self.parse_known_args(argv, argparse.Namespace(**dict.fromkeys(self._flags, _ABSENT)))
        found = vars(values)
        self.given = frozenset(name for name in self._flags if found[name] is not _ABSENT)
        found.update({name: flag.value_by_default for name, flag in self._flags.items() if name not in self.given})
        if self._positional is not None:
            if unknown and found[self._positional] is None and not any(word.startswith("-") for word in unknown):
                found[self._positional] = unknown.pop(0)
            elif not unknown and found[self._positional] is None and self._flags[self._positional].required:
                self.error(f"--{self._positional} is missing: give it, or its value as the first argument")
        if unknown:
            self.error(self._unknown(next((word for word in unknown if word.startswith("-")), unknown[0])))
        for name, flag in self._flags.items():
            if problem := flag.problem(found[name]):
                self.error(problem)
        return found

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")

    def _unknown(self, argument: str) -> str:
        name = argument.partition("=")[0]
        if not name.startswith("-"):
            return f"unexpected argument {argument!r}"
        known = [option for action in self._actions for option in action.option_strings if "-" not in option[2:]]
        near = difflib.get_close_matches(name.replace("-", "_").replace("__", "--", 1), known, 1)
        return f"unknown flag {name}" + (f"; did you mean {near[0]}?" if near else "; see --help")


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=118)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        options = [option for option in action.option_strings if "-" not in option[2:]]
        spelled = ", ".join(options or action.option_strings)
        if action.nargs == 0:
            return spelled
        return f"{spelled} {self._format_args(action, self._get_default_metavar_for_optional(action))}"
