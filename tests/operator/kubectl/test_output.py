"""Nothing that comes from a cluster obeys the terminal's control sequences."""

from __future__ import annotations

import io
import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from blade_operator.command_line import one_line, safe
from blade_operator.kubectl.commands.status import tree
from blade_operator.kubectl.output import make_table, styled

ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b31mred\rover\x08\u202etxt[bold]x[/bold]"


def _obeyed(text: str) -> set[str]:
    """Characters of ``text`` that a terminal obeys."""
    return {each for each in text if unicodedata.category(each) in ("Cc", "Cs") and each not in "\n\t"} | (
        set(text) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u2028\u2029")
    )


@given(st.text())
def test_no_control_character_is_left(text: str) -> None:
    assert not _obeyed(safe(text))
    assert not _obeyed(one_line(text))
    assert "\n" not in one_line(text)


def test_the_code_is_shown() -> None:
    assert safe(ATTACK) == "\\e]0;owned\\a\\e[2J\\x9b31mred\\rover\\x08\\u202etxt[bold]x[/bold]".replace("\\x08", "\\b")
    assert safe("é 漢字 😀 tab\tend\n") == "é 漢字 😀 tab\tend\n"


def test_trees_and_tables_show_it_too() -> None:
    out = io.StringIO()
    console = Console(file=out, width=400, highlight=False, markup=False, color_system=None)
    container = {"name": "c", "state": ATTACK, "failing": True, "init": False, "restarts": 0, "lastLine": ATTACK}
    failure = {"pod": "", "reason": ATTACK, "message": ATTACK}
    pod = {"name": "p", "role": "engine", "revision": ATTACK, "node": ATTACK, "status": ATTACK, "ready": False}
    found = {
        "name": "a",
        "phase": ATTACK,
        "url": ATTACK,
        "engines": {"desired": 1, "ready": 0, "updated": 0, "draining": 0},
        "observed": True,
        "conditions": [{"type": ATTACK, "status": "False", "reason": ATTACK, "message": ATTACK}],
        "revision": {"failed": ATTACK},
        "failures": [failure],
        "pods": [{**pod, "created": "", "message": ATTACK, "containers": [container]}],
    }
    console.print(tree(found))
    table = make_table("A")
    table.add_row(styled(ATTACK))
    console.print(table)
    assert not _obeyed(out.getvalue())
    assert "[bold]x[/bold]" in out.getvalue()
