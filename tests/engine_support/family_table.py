"""Proves every row of :mod:`engine_support.families` and writes what was found into docs/models.md (``make
test-models``)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from engine_support.families import ROWS, Row
from engine_support.family_proof import Proof, prove

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- families: make test-models -->\n", "<!-- end of families -->\n"


def line(row: Row, proof: Proof) -> str:
    """The row in the table."""
    call = "yes" if proof.fused else "no"
    return f"{start(row)}{proof.deviation:.0e} | {proof.noise:.2f} | {call} |\n"


def start(row: Row) -> str:
    """The part of the line that does not depend on a run."""
    return f"| `{row.architecture}` | {row.shows} | {row.through} | "


def main() -> int:
    lines = []
    for name, row in ROWS.items():
        with tempfile.TemporaryDirectory() as folder:
            proof = prove(row, Path(folder))
        print(f"{name}: fp32 {proof.deviation:.1e}, bf16 {proof.noise:.2f}", flush=True)
        lines.append(line(row, proof))
    head = "| architecture | on in this row | `--model_impl` | fp32 | bf16 | one call on CPU |\n" + "|---" * 6 + "|\n"
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}{head}{''.join(lines)}{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
