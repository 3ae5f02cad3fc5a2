"""What the clients' programs print, and the table of it in docs/clients.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
_BEGIN, _END = "<!-- clients: make test-clients -->\n", "<!-- end of clients -->\n"


@dataclass(frozen=True)
class Outcome:
    """How one case of a client ended."""

    client: str
    version: str
    case: str
    error: str
    shown: str
    program: str


def outcomes(program: str, output: str) -> list[Outcome]:
    """The cases of a program that printed this; what is no line of a case is left out."""
    found = []
    for line in output.splitlines():
        if line.startswith('{"client":'):
            read = json.loads(line)
            named = {name: read[name] for name in ("client", "version", "case", "error", "shown")}
            found.append(Outcome(**named, program=program))
    return found


def table(found: Iterable[Outcome]) -> str:
    """A line for each client: what passes, and what does not."""
    lines = ["| client | version | passes | fails | program |\n" + "|---" * 5 + "|\n"]
    ordered = sorted(found, key=lambda each: (each.client.lower(), each.program))
    for (client, version, program), group in groupby(
        ordered, key=lambda each: (each.client, each.version, each.program)
    ):
        cases = list(group)
        passed = "; ".join(each.case for each in cases if not each.error)
        failed = "; ".join(each.case for each in cases if each.error)
        path = f"../tests/clients/{program}"
        lines.append(f"| {client} | {version} | {passed} | {failed or 'none'} | [{Path(program).name}]({path}) |\n")
    return "".join(lines)


def page(found: Iterable[Outcome], text: str) -> str:
    """The page with this table in it."""
    before, rest = text.split(_BEGIN)
    _, after = rest.split(_END)
    return f"{before}{_BEGIN}\n{table(found)}\n{_END}{after}"
