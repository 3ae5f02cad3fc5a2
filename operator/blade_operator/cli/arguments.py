"""The commands and their options. Each command is imported only when it runs, so that every one starts quickly."""

from __future__ import annotations

import argparse
import difflib
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

_CHOICE = re.compile(r"argument (?:COMMAND|command): invalid choice: '([^']*)'")
COMMANDS = ("local", "apply", "get", "describe", "logs", "scale", "delete")


class _Parser(argparse.ArgumentParser):
    """Errors on one line, with the nearest command or option for one that does not exist."""

    def error(self, message: str) -> NoReturn:
        if match := _CHOICE.match(message):
            message = f"unknown command {match[1]!r}{_nearest(match[1], COMMANDS)}"
        elif message.startswith("unrecognized arguments: "):
            word = message.removeprefix("unrecognized arguments: ").split()[0]
            message = f"unknown option or argument {word!r}{_nearest(word.partition('=')[0], OPTIONS)}"
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


OPTIONS = (
    *("--name", "--namespace", "--port", "--filename", "--model", "--replicas", "--ask"),
    *("--output", "--watch", "--follow", "--container", "--previous", "--tail", "--wait", "--no-wait", "--help"),
)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options; ``run`` is the function that carries the command out. Exits with 2 on a mistake."""
    return _parser().parse_args(argv)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="blade_operator",
        description="Keeps LLMServices as declared. `local up` runs them on this machine; the other commands read and "
        "change what it keeps.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    local = commands.add_parser("local", help="run LLMServices on this machine", allow_abbrev=False)
    up = local.add_subparsers(metavar="COMMAND", required=True).add_parser(
        "up",
        help="run the control loop in the foreground until Ctrl-C, which stops everything",
        description="Runs the control loop in the foreground. Ctrl-C drains and stops everything; a killed loop leaves "
        "the service running, and the next `local up` takes it over.",
        allow_abbrev=False,
    )
    _runtime(up)
    up.add_argument(
        "--port",
        type=_port,
        default=8080,
        help="port of the first service (default 8080); others get the next free ones",
    )
    source = up.add_mutually_exclusive_group()
    source.add_argument("-f", "--filename", action="append", default=[], metavar="FILE", help="apply these manifests")
    source.add_argument("--model", help="serve this model: a folder, or a hub id such as Qwen/Qwen2.5-0.5B-Instruct")
    up.add_argument("--replicas", type=_count, help="engines for --model (default 1)")
    up.add_argument("--ask", metavar="QUESTION", help="when ready, ask this and print the answer as it comes")
    up.set_defaults(run=_command("up"))

    apply = _add(commands, "apply", "apply manifests", "change", "apply")
    apply.add_argument("-f", "--filename", action="append", required=True, metavar="FILE", help="file, or - for stdin")

    get = _add(commands, "get", "list objects", "get")
    get.add_argument("kind", nargs="?", default="llm", help="llm (default), pods, deploy, svc, events, all …")
    get.add_argument("object", nargs="?", metavar="NAME", help="only this one")
    get.add_argument("-o", "--output", choices=["yaml", "json", "wide", "name"], help="output format")
    get.add_argument("-w", "--watch", action="store_true", help="go on printing what changes")

    describe = _add(commands, "describe", "tell everything about one LLMService", "describe")
    describe.add_argument("object", nargs="+", metavar="NAME", help="of the LLMService")

    logs = _add(commands, "logs", "print the output of containers", "logs")
    logs.add_argument("object", metavar="NAME", help="an LLMService or a pod")
    logs.add_argument("-f", "--follow", action="store_true", help="go on printing what comes")
    logs.add_argument("-c", "--container", help="engine (default), check, fetch or router")
    logs.add_argument("-p", "--previous", action="store_true", help="of the run before the last restart")
    logs.add_argument("--tail", type=_count, metavar="LINES", help="only the last lines")

    scale = _add(commands, "scale", "set the number of engines", "change", "scale")
    scale.add_argument("object", metavar="NAME", help="of the LLMService")
    scale.add_argument("--replicas", type=_count, required=True, help="engines to run; 0 for none")

    delete = _add(commands, "delete", "delete an LLMService and all that belongs to it", "change", "delete")
    delete.add_argument("object", nargs="*", metavar="NAME", help="of LLMServices")
    delete.add_argument("-f", "--filename", action="append", default=[], metavar="FILE", help="or in these manifests")
    delete.add_argument(
        "--wait", action=argparse.BooleanOptionalAction, default=True, help="return when everything has ended"
    )
    return parser


def _add(
    commands: argparse._SubParsersAction[_Parser], name: str, text: str, module: str, function: str = "run"
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text.capitalize() + ".", allow_abbrev=False)
    _runtime(parser)
    parser.add_argument("-n", "--namespace", default="default", help="namespace (default: default)")
    parser.set_defaults(run=_command(module, function))
    return parser


def _runtime(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="default", help="which local runtime, if there are several")


def _command(module: str, function: str = "run") -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        code: int = getattr(importlib.import_module(f"blade_operator.cli.{module}"), function)(options)
        return code

    return run


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: use 1 to 65535")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return int(text)


def _nearest(word: str, known: Sequence[str]) -> str:
    found = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
