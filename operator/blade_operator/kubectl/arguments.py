"""The commands of ``kubectl llm``, which are ``blade_operator``'s as well. Each is imported only when it runs."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from blade_operator.cli import fit
from blade_operator.cli.arguments import Commands, add_rollout
from blade_operator.command_line import Parser, count, positive

PROGRAM: Final = "kubectl llm"
_HERE: Final = "blade_operator.kubectl.commands"


@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    help: str
    module: str
    """Whose ``run`` executes the command; of this folder, unless its whole name is given."""
    add_flags: Callable[[argparse.ArgumentParser], None]
    cluster: bool = True
    """Whether it looks at a cluster or the local runtime."""


def _status(parser: argparse.ArgumentParser) -> None:
    _name(parser, optional=True)
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    _output(parser)


def _top(parser: argparse.ArgumentParser) -> None:
    _name(parser, optional=True)
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    parser.add_argument("--once", action="store_true", help="print one table and end")
    parser.add_argument("--interval", type=positive, default=2, metavar="SECONDS", help="between measurements (2)")
    _output(parser)


def _chat(parser: argparse.ArgumentParser) -> None:
    _name(parser, optional=True)
    parser.add_argument("prompt", nargs="?", help="one question; without it, standard input or a conversation")
    parser.add_argument("--model", help="the model to ask (default: the first that the service lists)")
    parser.add_argument("--adapter", metavar="NAME", help="a LoRA adapter to ask")
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    parser.add_argument("--max_tokens", type=positive, metavar="N", help="most tokens of an answer")
    parser.add_argument("--temperature", type=float, help="of sampling (default: the model's)")
    parser.add_argument("--timeout", type=positive, default=300, metavar="SECONDS", help="without a token (300)")


def _logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("object", metavar="NAME", help="of an LLMService, or pod/NAME")
    parser.add_argument("-c", "--container", help="engine, check, fetch or router (default: what fails)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on printing what comes")
    parser.add_argument("-p", "--previous", action="store_true", help="of the run before the last restart")
    parser.add_argument("--tail", type=count, metavar="LINES", help="only the last lines (default: 100 of each)")


def _command(parser: argparse.ArgumentParser) -> None:
    _name(parser, optional=True)
    parser.add_argument("--pod", metavar="NAME", help="of this pod")
    parser.add_argument("--role", choices=["engine", "router"], help="of pods of this role (default: both)")
    _output(parser)


def _adapters(parser: argparse.ArgumentParser) -> None:
    _name(parser, optional=True)
    _output(parser)


def _check(parser: argparse.ArgumentParser) -> None:
    _name(parser, optional=True)
    parser.add_argument("--node", metavar="NAME", help="on this node of the cluster")
    parser.add_argument("--gpus", type=count, metavar="N", help="GPUs to take (default: as the LLMService, else none)")
    parser.add_argument("--gpu_resource", metavar="NAME", help="what they are called (default nvidia.com/gpu)")
    parser.add_argument("--image", help="engine image (default: as the LLMService, else the operator's)")
    _operator(parser)
    parser.add_argument("--timeout", type=positive, default=300, metavar="SECONDS", help="for all of it (300)")
    parser.add_argument("-o", "--output", choices=["yaml", "json"], help="print the Job, and do nothing")
    _words(parser, "blade_llm_check, such as --items shm")


def _bench(parser: argparse.ArgumentParser) -> None:
    _name(parser, optional=True)
    parser.add_argument("--in_cluster", action="store_true", help="as a Job in the cluster, with the engine image")
    parser.add_argument("--image", help="engine image of the Job (default: as the LLMService, else the operator's)")
    _operator(parser)
    parser.add_argument("--timeout", type=positive, default=900, metavar="SECONDS", help="for all of it (900)")
    _words(parser, "blade_llm_benchmark, such as --concurrency 32")


def _doctor(parser: argparse.ArgumentParser) -> None:
    _name(parser, optional=True)
    parser.add_argument("--output_dir", default=".", metavar="FOLDER", help="where the bundle goes (default: here)")
    parser.add_argument("--no-bundle", dest="bundle", action="store_false", help="only say what is found")
    _operator(parser)
    _output(parser)


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="for this shell")


COMMANDS: Final = {
    "status": Command("show services, their pods and what is wrong, as a tree", "status", _status),
    "top": Command("show the load of services and engines as it changes", "top", _top),
    "chat": Command("talk to a service", "chat", _chat),
    "logs": Command("print logs, of what fails first", "logs", _logs),
    "bench": Command("put load on a service and say how it bears it", "bench", _bench),
    "command": Command("print the command lines of pods", "command", _command),
    "adapters": Command("list LoRA adapters, where they are and their state", "adapters", _adapters),
    "check": Command("check a node of the cluster, before anything is served", "check", _check),
    "fit": Command(
        "say whether a model fits a GPU or a memory limit", "blade_operator.cli.fit", fit.add_flags, False
    ),
    "doctor": Command("find what is wrong, and pack up what shows it", "doctor", _doctor),
    "completion": Command("print the completion of a shell", "blade_operator.kubectl.completion", _completion, False),
}  # fmt: skip


def make_parser() -> Parser:
    """The parser of ``kubectl llm``."""
    parser = Parser(prog=PROGRAM, description="What people ask of their LLM services.", allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_commands(commands, plugin=True)
    add_rollout(commands, _add_rollout_action)
    return parser.finish()


def add_commands(commands: Commands) -> None:
    """Add them to ``blade_operator``, but for those that it has already; its ``logs`` may be of a cluster, too."""
    _add_commands(commands, plugin=False)
    logs = commands.choices["logs"]
    _add_cluster(logs, plugin=False)
    logs.set_defaults(run=_runs("logs", "run_here_or_there"), plugin=False, namespace=None)


def _add_commands(commands: Commands, *, plugin: bool) -> None:
    for name, command in COMMANDS.items():
        if name in commands.choices:
            continue
        parser = commands.add_parser(
            name, help=command.help, description=command.help.capitalize() + ".", allow_abbrev=False
        )
        command.add_flags(parser)
        if command.cluster:
            _add_place(parser, plugin=plugin)
        parser.set_defaults(run=_runs(command.module), plugin=plugin)


def _add_rollout_action(commands: Commands, action: str, text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(action, help=text, description=text.capitalize() + ".", allow_abbrev=False)
    _add_place(parser, plugin=True)
    parser.set_defaults(run=_runs("rollout"), plugin=True)
    return parser


def _add_place(parser: argparse.ArgumentParser, *, plugin: bool) -> None:
    parser.add_argument("-n", "--namespace", help="namespace (default: that of the context)")
    _add_cluster(parser, plugin=plugin)
    if not plugin:
        parser.add_argument("--name", default="default", help="which local runtime, if there are several")


def _add_cluster(parser: argparse.ArgumentParser, *, plugin: bool) -> None:
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: its current one)")
    where = "kubectl's" if plugin else "the local runtime where it runs, else kubectl's"
    parser.add_argument("--kubeconfig", metavar="FILE", help=f"of the cluster (default: {where})")


def _name(parser: argparse.ArgumentParser, *, optional: bool) -> None:
    parser.add_argument("object", nargs="?" if optional else None, metavar="NAME", help="of the LLMService")


def _operator(parser: argparse.ArgumentParser) -> None:
    help_text = "of the operator's own pods (bladellm-system)"
    parser.add_argument("--operator_namespace", default="bladellm-system", metavar="NAMESPACE", help=help_text)


def _output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", choices=["yaml", "json"], help="output format")


def _words(parser: argparse.ArgumentParser, program: str) -> None:
    parser.epilog = f"What follows -- goes to {program}."
    parser.set_defaults(words=[])


def split_words(argv: list[str]) -> tuple[list[str], list[str]]:
    """What stands before the first ``--``, and behind it."""
    if "--" not in argv:
        return argv, []
    place = argv.index("--")
    return argv[:place], argv[place + 1 :]


def _runs(module: str, function: str = "run") -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        found = importlib.import_module(module if "." in module else f"{_HERE}.{module}")
        code: int = getattr(found, function)(options)
        return code

    return run


def walk(parser: Parser, words: list[str]) -> Iterator[Parser]:
    """``parser`` and those of the commands that ``words`` name, one below the other."""
    yield parser
    for word in words:
        if word in (commands := parser.commands()):
            parser = commands[word]
            yield parser
