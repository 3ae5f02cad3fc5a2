"""Documents to answer from: what Python says of some of its functions."""

from __future__ import annotations

import builtins
import inspect
from pathlib import Path

NAMES = ("abs", "all", "any", "callable", "chr", "divmod", "hash", "id", "len", "max", "ord", "repr", "sorted", "sum")
QUESTIONS = ("What does len do?", "What does sorted do?")


def write(folder: str) -> None:
    """A file of text for each."""
    for name in NAMES:
        text = f"What does {name} do?\n{inspect.getdoc(getattr(builtins, name))}\n"
        (Path(folder) / f"{name}.txt").write_text(text, encoding="utf-8")
