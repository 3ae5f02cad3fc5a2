"""Progress of a benchmark on stderr: a bar on a terminal, a line every few seconds in a log."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from blade_llm.benchmark.client.target import Target
from blade_llm.benchmark.load import Load
from blade_llm.benchmark.options import Options
from blade_llm.benchmark.report.tables import format_probe, format_probe_head
from blade_llm.benchmark.session import ProgressListener
from blade_llm.benchmark.sweep import Probe

SECONDS_PER_LINE: Final = 5.0
_SECONDS_PER_DRAWING: Final = 0.1


class ProgressPrinter(ProgressListener):
    """Prints the head and the rates tried on stdout, progress on stderr. A context: entered before the session."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description:>18}"),
                BarColumn(),
                TextColumn("{task.fields[counts]}"),
                console=Console(stderr=True),
                auto_refresh=False,
                transient=True,
            )
        self._stage = ""
        self._requests = self._seconds = math.inf
        self._drawn = 0.0
        self._probes = 0

    def __enter__(self) -> ProgressPrinter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def ready(self, target: Target) -> None:
        print(f"Benchmark of {target.url}")
        rows = [("model", target.model), ("load", self._options.load_text), ("prompts", self._options.prompts_text)]
        print("\n".join(f"  {name:<12}{value}" for name, value in rows), end="\n\n", flush=True)
        if self._bar is not None:
            self._bar.add_task("", total=None, counts="")
            self._bar.start()

    def stage(self, name: str, requests: float, seconds: float) -> None:
        self._stage, self._requests, self._seconds = name, requests, seconds
        self._drawn = time.monotonic() if self._bar is None else 0.0

    def change(self, load: Load) -> None:
        now = time.monotonic()
        if now - self._drawn < (SECONDS_PER_LINE if self._bar is None else _SECONDS_PER_DRAWING):
            return
        self._drawn = now
        failed = sum(request.failure is not None for request in load.finished)
        counts = f"{len(load.finished)}" + (f"/{self._requests:.0f}" if self._requests < math.inf else "")
        counts += (
            f" done, {load.in_flight} on their way"
            + (f", {failed} failed" if failed else "")
            + f", {load.seconds:.0f} s"
        )
        if self._bar is None:
            print(f"{self._stage}: {counts}", file=sys.stderr, flush=True)
            return
        share = max(len(load.finished) / self._requests, min(1.0, load.seconds / self._seconds))
        task = self._bar.task_ids[0]
        self._bar.update(task, description=self._stage, completed=share, total=1.0, counts=counts, refresh=True)

    def probed(self, probe: Probe) -> None:
        lines = [] if self._probes else [format_probe_head()]
        self._probes += 1
        for line in [*lines, format_probe(probe)]:
            if self._bar is not None and sys.stdout.isatty():
                self._bar.console.print(line, highlight=False, markup=False, soft_wrap=True)
            else:
                print(line, flush=True)
