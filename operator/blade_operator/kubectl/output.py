"""What commands print: tables and trees for people, YAML and JSON for programs.

Names, messages and logs come from whoever may write to a cluster. What is printed of them never controls the terminal:
every control character is shown as its code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import IO, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from blade_operator.cli.manifests import dump
from blade_operator.command_line import one_line, safe

STYLES = {"ok": "green", "bad": "red", "warn": "yellow", "dim": "dim"}


def styled(text: object, style: str = "") -> Text:
    """A line of ``text``, safe, for rich, which reads no markup in it."""
    return Text(one_line(text), style=style)


def console(file: IO[str] | None = None) -> Console:
    """A console for standard output, as wide as the terminal is. What is piped gets neither colours nor line breaks."""
    made = Console(file=file or sys.stdout, highlight=False, markup=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in made._environ:
        made.width = 10_000
    return made


def make_table(*columns: str, numbers: Sequence[str] = ()) -> Table:
    """A table as kubectl prints one: no lines, two blanks between columns; ``numbers`` are right-aligned."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return table


def print_data(value: Any, form: str) -> None:
    """Print ``value`` as ``json`` or ``yaml``: their own escapes keep control characters away from the terminal."""
    if form == "json":
        print(json.dumps(value, indent=2))
    else:
        print(safe(dump(value)), end="")


def warn(text: object) -> None:
    """Print a note to standard error."""
    print(one_line(text), file=sys.stderr, flush=True)
