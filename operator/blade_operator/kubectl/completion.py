"""Completion of what is typed: scripts for shells, and the answers that they and kubectl ask for.

kubectl completes ``kubectl llm`` by running ``kubectl_complete-llm`` with the words behind it, the last one unfinished.
The answer has a candidate a line, with a tab before what it means, and a last line ``:NUMBER`` with directives.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from blade_operator.cli.errors import CommandError
from blade_operator.cluster.local.errors import LocalError
from blade_operator.command_line import Parser, one_line
from blade_operator.kubectl.arguments import make_parser, walk
from blade_operator.kubectl.places.choice import open_place
from blade_protocol.labels import KIND

NO_FILES: Final = 4
FILES: Final = 0
"""Directives of cobra, kubectl's library of command lines."""
_SECONDS: Final = 2.0
"""How long names may take: who waits for them has just pressed Tab."""
_SCRIPTS: Final = {
    "bash": """\
_kubectl_llm() {
    local line IFS=$'\\n'
    COMPREPLY=()
    for line in $(kubectl-llm __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null); do
        case $line in
            :0) compopt -o default ;;
            :*) ;;
            *) COMPREPLY+=("${line%%$'\\t'*}") ;;
        esac
    done
}
complete -F _kubectl_llm kubectl-llm
""",
    "zsh": """\
#compdef kubectl-llm
_kubectl_llm() {
    local line
    local -a candidates
    for line in ${(f)"$(kubectl-llm __complete "${(@)words[2,CURRENT]}" 2>/dev/null)"}; do
        case $line in
            :0) _files ;;
            :*) ;;
            *) candidates+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}") ;;
        esac
    done
    _describe 'kubectl llm' candidates
}
compdef _kubectl_llm kubectl-llm
""",
    "fish": """\
function __kubectl_llm
    set -l words (commandline -opc) (commandline -ct)
    kubectl-llm __complete $words[2..] 2>/dev/null | string match -v ':*'
end
complete -c kubectl-llm -f -a '(__kubectl_llm)'
""",
}
_HINT: Final = """\
# kubectl itself completes `kubectl llm` where kubectl's own completion is set up and kubectl_complete-llm is on PATH.
"""


def run(options: argparse.Namespace) -> int:
    """Print the script of a shell."""
    hint, script = _HINT, _SCRIPTS[options.shell]
    if script.startswith("#"):
        first, _, script = script.partition("\n")
        hint = f"{first}\n{hint}"
    print(hint + script, end="")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """``kubectl_complete-llm``."""
    return print_candidates(sys.argv[1:] if argv is None else argv)


def print_candidates(words: Sequence[str]) -> int:
    """Print what the last of ``words`` may become, and the directives."""
    found, files = candidates(list(words) or [""])
    for word, meaning in found:
        print(f"{word}\t{one_line(meaning)}" if meaning else word)
    print(f":{FILES if files else NO_FILES}")
    return 0


def candidates(words: list[str]) -> tuple[list[tuple[str, str]], bool]:
    """What the last of ``words`` may become, with what it means; and whether file names may stand there."""
    *before, word = words
    if "--" in before:
        return [], True
    parser = list(walk(make_parser(), before))[-1]
    option = _waiting(parser, before)
    if option is not None:
        if option.choices:
            return _starting([(str(each), "") for each in option.choices], word), False
        if option.dest in ("object", "namespace"):
            return [], False
        return [], option.dest in ("kubeconfig", "output_dir")
    if word.startswith("-"):
        options = [(name, each.help or "") for each in parser._actions for name in each.option_strings]
        return _starting([(name, text) for name, text in options if name.startswith("--")], word), False
    if commands := parser.commands():
        helps = {each.dest: each.help or "" for each in _choices(parser)}
        return _starting([(name, helps.get(name, "")) for name in commands], word), False
    places = [each for each in parser._actions if not each.option_strings]
    if not places:
        return [], False
    given = _given(parser, before)
    action = places[min(given, len(places) - 1)]
    if action.choices:
        return _starting([(str(each), "") for each in action.choices], word), False
    return (_starting([(name, "") for name in _names(before)], word), False) if action.dest == "object" else ([], False)


def _choices(parser: Parser) -> Iterator[argparse.Action]:
    """The commands of a parser, with their help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action._choices_actions


def _waiting(parser: Parser, before: list[str]) -> argparse.Action | None:
    """The option whose value comes next."""
    found = parser._option_string_actions.get(before[-1]) if before else None
    return found if found is not None and found.nargs != 0 else None


def _given(parser: Parser, before: list[str]) -> int:
    """How many values that belong to no option ``before`` has behind the command."""
    count, skip = 0, False
    names = set(parser.prog.split())
    for word in before:
        if skip:
            skip = False
        elif word.startswith("-"):
            action = parser._option_string_actions.get(word)
            skip = action is not None and action.nargs != 0
        elif word not in names:
            count += 1
    return count


def _starting(found: list[tuple[str, str]], word: str) -> list[tuple[str, str]]:
    return [(name, text) for name, text in found if name.startswith(word)]


def _names(before: list[str]) -> list[str]:
    """The services that the command may be about; none when the cluster does not say so at once."""
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    reader.add_argument("-n", "--namespace")
    reader.add_argument("--context")
    reader.add_argument("--kubeconfig")
    options, _ = reader.parse_known_args(before)
    options.plugin = True

    found = queue.Queue[list[str]]()

    def read() -> None:
        with contextlib.suppress(CommandError, LocalError), open_place(options) as place:
            services = place.list(KIND, options.namespace or place.namespace)
            found.put([one_line(each["metadata"]["name"]) for each in services])
            return
        found.put([])

    # Unlike a pool's thread, nobody waits for a daemon at the end of the process.
    threading.Thread(target=read, daemon=True).start()
    try:
        return found.get(timeout=_SECONDS)
    except queue.Empty:
        return []
