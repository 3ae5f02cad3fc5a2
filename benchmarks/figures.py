"""How every benchmark ends: one line a figure, the same as JSON, and exit code 1 when a target is missed."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
QUICK = bool(os.environ.get("QUICK"))
"""``QUICK=1`` selects the short form."""


@dataclass(frozen=True)
class Figure:
    """One measured value and, if ``relation`` is ``>=`` or ``<=``, the target it must reach."""

    name: str
    value: float
    unit: str
    relation: str = ""
    target: float = 0.0

    @property
    def reached(self) -> bool:
        """Whether the target, if there is one, is met."""
        if not self.relation:
            return True
        return self.value >= self.target if self.relation == ">=" else self.value <= self.target

    def __str__(self) -> str:
        goal = f" {self.relation} {self.target:.7g}" if self.relation else ""
        return f"figure {self.name} {self.value:.7g} {self.unit}{goal}"


def report(benchmark: str, figures: Sequence[Figure], *, keep: bool = False, **about: str) -> int:
    """Print the figures, write ``results/<benchmark>.json``; the exit code: 1 when a target is missed.

    ``about`` is what else a reader needs to know of the machine. ``keep``: figures of other names that the file has
    stay in it, those of an earlier run that measured other rows.
    """
    print(*figures, sep="\n")
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{benchmark}.json"
    values = [asdict(figure) for figure in figures]
    if keep and file.exists():
        measured = {figure.name for figure in figures}
        before = json.loads(file.read_text(encoding="utf-8"))["figures"]
        values = [each for each in before if each["name"] not in measured] + values
    content = {"benchmark": benchmark, "quick": QUICK, "machine": machine() | about, "figures": values}
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0 if all(figure.reached for figure in figures) else 1


def machine() -> dict[str, str | int | None]:
    """What a reader needs to judge a figure by."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"cpu": model, "cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}
