"""``docs/troubleshooting.md``: written from the troubles of the tests and from what kubectl printed of each."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from e2e.support.troubles import TROUBLES, Trouble

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"
_BLOCK: Final = re.compile(
    r"^```console\n\$ kubectl get llm (?P<name>\S+)\n(?P<printed>.*?)^```$", re.DOTALL | re.MULTILINE
)
_HEAD: Final = """\
# Troubleshooting

`kubectl get llm` shows in `REASON` why a service is not up, and `kubectl describe llm NAME` tells the rest: what
happened, in the words of whoever knows, and in parentheses the field to change. Events tell the same.
[operator.md](operator.md#status) has what each condition means.

Each failure below was made on a real cluster by `e2e/tests/test_troubleshooting.py`, which also wrote down what kubectl
printed. Left out of the descriptions: conditions that are fine or not known, times, and what does not matter for the
cause; `<pod>` and the like stand for what differs each time. To write this page anew:

    UPDATE_DOCS=1 make e2e E2E_ARGS="-k troubleshooting"
"""


def updating() -> bool:
    """Whether the tests write the page; else they compare."""
    return bool(os.environ.get("UPDATE_DOCS"))


def printed() -> dict[str, str]:
    """What kubectl printed of each service, as the page has it."""
    text = PAGE.read_text() if PAGE.exists() else ""
    return {found["name"]: found["printed"] for found in _BLOCK.finditer(text)}


def block(trouble: Trouble, table: str, description: str) -> str:
    """The part of `printed` for one service."""
    return f"{table}\n$ kubectl describe llm {trouble.name}\n{description}\n"


def description(block: str) -> str:
    """The extract of ``kubectl describe`` in a `block`."""
    _, _, text = block.partition("\n$ kubectl describe llm ")
    return text.partition("\n")[2].rstrip("\n")


def write(blocks: Mapping[str, str]) -> None:
    """Write the page with these blocks; services without one are left out until they have it."""
    PAGE.write_text(render(blocks))


def render(blocks: Mapping[str, str]) -> str:
    """The whole page."""
    there = [trouble for trouble in TROUBLES if trouble.name in blocks]
    rows = [f"| `{trouble.reason}` | [{trouble.title}](#{_anchor(trouble.title)}) |" for trouble in there]
    index = "\n".join(["| `REASON` | Failure |", "|---|---|", *sorted(rows)])
    return "\n".join([_HEAD, f"{index}\n", *(_section(trouble, blocks[trouble.name]) for trouble in there)])


def _section(trouble: Trouble, printed: str) -> str:
    spec = textwrap.indent(textwrap.dedent(trouble.spec).strip(), "  ")
    return (
        f"## {trouble.title}\n\n```yaml\nspec:\n{spec}\n```\n\n"
        f"```console\n$ kubectl get llm {trouble.name}\n{printed}```\n\n{textwrap.fill(trouble.advice, 120)}\n"
    )


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
