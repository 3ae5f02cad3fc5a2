"""Download progress on stderr: a bar on a terminal, a line every few seconds in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from blade_llm.hub.model import Progress, ProgressCallback

SECONDS_PER_LINE: Final = 5.0


@contextmanager
def download_progress() -> Iterator[ProgressCallback]:
    """A callback for :func:`blade_llm.hub.resolve.resolve_model` that shows the download while the context is open.

    Shows nothing until the first call, so that it costs nothing when there is nothing to download.
    """
    if sys.stderr.isatty():
        with _bar() as callback:
            yield callback
    else:
        yield _lines()


@contextmanager
def _bar() -> Iterator[ProgressCallback]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    task = bar.add_task("downloading", total=None)

    def show(progress: Progress) -> None:
        bar.start()
        description = f"{progress.file} ({progress.files_done}/{progress.files_total} files)"
        bar.update(task, description=description, total=progress.total_bytes, completed=progress.done_bytes)

    try:
        yield show
    finally:
        bar.stop()


def _lines() -> ProgressCallback:
    last = float("-inf")

    def show(progress: Progress) -> None:
        nonlocal last
        done = progress.files_done == progress.files_total
        if not done and time.monotonic() - last < SECONDS_PER_LINE:
            return
        last = time.monotonic()
        share = 100 * progress.done_bytes / max(1, progress.total_bytes)
        print(
            f"downloading {progress.done_bytes} of {progress.total_bytes} bytes ({share:.0f} %), "
            f"{progress.files_done}/{progress.files_total} files, {progress.file}",
            file=sys.stderr,
            flush=True,
        )

    return show
