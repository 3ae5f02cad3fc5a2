"""Progress of work on a known number of bytes on stderr: a bar on a terminal, a line every few seconds in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from blade_llm.cli.progress.download import SECONDS_PER_LINE
from blade_llm.weights.split.writer import Progress


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
