"""``docs/troubleshooting.md``: generated from the failure cases of the tests and from what kubectl printed of each."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from e2e.support.failure_cases import FAILURE_CASES, FailureCase

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"
_BLOCK: Final = re.compile(
    r"^```console\n\$ kubectl get llm (?P<name>\S+)\n(?P<printed>.*?)^```$", re.DOTALL | re.MULTILINE
)
_HEAD: Final = """\
# Troubleshooting

`kubectl get llm` shows in `REASON` why a service is not up, and `kubectl describe llm NAME` has the details: the
message of the component that failed and, in parentheses, the field to change. Events have the same.
[operator.md](operator.md#status) has what each condition means.

Each failure below was provoked on a real cluster by `e2e/tests/test_troubleshooting.py`, which also recorded what
kubectl printed. Omitted from the descriptions: conditions that are fine or Unknown, times, and what does not matter for
the cause; `<pod>` and the like stand for what differs each time. To generate this page anew:

    UPDATE_DOCS=1 make e2e E2E_ARGS="-k troubleshooting"
"""


def updating() -> bool:
    """Whether the tests write the page; else they compare."""
    return bool(os.environ.get("UPDATE_DOCS"))


def printed() -> dict[str, str]:
    """What kubectl printed of each service, as the page has it."""
    text = PAGE.read_text() if PAGE.exists() else ""
    return {found["name"]: found["printed"] for found in _BLOCK.finditer(text)}


def block(case: FailureCase, table: str, description: str) -> str:
    """The part of `printed` for one service."""
    return f"{table}\n$ kubectl describe llm {case.name}\n{description}\n"


def description(block: str) -> str:
    """The extract of ``kubectl describe`` in a `block`."""
    _, _, text = block.partition("\n$ kubectl describe llm ")
    return text.partition("\n")[2].rstrip("\n")


def write(blocks: Mapping[str, str]) -> None:
    """Write the page with these blocks; services without one are left out until they have it."""
    PAGE.write_text(render(blocks))


def render(blocks: Mapping[str, str]) -> str:
    """The whole page."""
    there = [case for case in FAILURE_CASES if case.name in blocks]
    rows = [f"| `{case.reason}` | [{case.title}](#{_anchor(case.title)}) |" for case in there]
    index = "\n".join(["| `REASON` | Failure |", "|---|---|", *sorted(rows)])
    return "\n".join([_HEAD, f"{index}\n", *(_section(case, blocks[case.name]) for case in there)])


def _section(case: FailureCase, printed: str) -> str:
    spec = textwrap.indent(textwrap.dedent(case.spec).strip(), "  ")
    return (
        f"## {case.title}\n\n```yaml\nspec:\n{spec}\n```\n\n"
        f"```console\n$ kubectl get llm {case.name}\n{printed}```\n\n{textwrap.fill(case.advice, 120)}\n"
    )


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
