"""What commands that write a checkpoint say on stderr: progress by bytes, a bar on a terminal or a line every few
seconds in a log, and why they failed."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from blade_llm.cli.progress import SECONDS_PER_LINE
from blade_llm.models.errors import ModelFilesError
from blade_llm.weights.split.writer import Progress

Failure = ModelFilesError | OSError | KeyboardInterrupt
"""What such a command catches."""
FAILURES: Final = (ModelFilesError, OSError, KeyboardInterrupt)
KEPT: Final = "; what is complete is kept, the same command continues"


@contextmanager
def byte_progress(verb: str) -> Iterator[Callable[[int], Progress]]:
    """What begins with the number of all bytes, and gives what shows those that are done."""
    if not sys.stderr.isatty():
        yield lambda total: _lines(verb, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bar(TextColumn("{task.description}"), *columns, console=Console(stderr=True)) as bar:

        def start(total: int) -> Progress:
            task = bar.add_task(verb, total=total)
            return lambda name, nbytes: bar.update(task, advance=nbytes, description=f"{verb} {name}")

        yield start


def _lines(verb: str, total: int) -> Progress:
    done = 0
    begin = last = time.monotonic()

    def show(name: str, nbytes: int) -> None:
        nonlocal done, last
        done += nbytes
        now = time.monotonic()
        if now - last < SECONDS_PER_LINE:
            return
        last = now
        share = min(100, 100 * done / max(1, total))
        left = (now - begin) * max(0, total - done) / max(1, done)
        print(
            f"{verb} {done} of {total} bytes ({share:.0f} %, about {left:.0f} s left), {name}",
            file=sys.stderr,
            flush=True,
        )

    return show


def end_with(program: str, failure: Failure, output_dir: Path, *, kept: bool) -> int:
    """Say on stderr, in a line, why ``program`` has not made ``output_dir``; returns the exit code: 130 for an
    interrupt, else 1. ``kept``: whether the same command goes on with what was begun, which is said of failures that
    it may help against."""
    after = KEPT if kept else ""
    if isinstance(failure, ModelFilesError):
        said = str(failure)
    elif isinstance(failure, KeyboardInterrupt):
        said = f"stopped{after}"
    else:
        said = f"no space left for {output_dir}" if failure.errno == errno.ENOSPC else str(failure)
        said += after
    print(f"{program}: {said}", file=sys.stderr)
    return 130 if isinstance(failure, KeyboardInterrupt) else 1
