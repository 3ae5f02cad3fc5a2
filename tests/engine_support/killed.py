"""Calls that are killed with SIGKILL at a chosen place, in a process of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_CALLS = ((os, "pwrite"), (os, "fdatasync"), (os, "fsync"), (os, "ftruncate"), (Path, "replace"), (Path, "unlink"))
"""What changes files, or makes sure of it."""


def disk_calls(run: Callable[[], object]) -> int:
    """How many calls that change files ``run`` makes."""
    reading, writing = os.pipe()

    def count() -> None:
        seen = _watch(None)
        run()
        os.write(writing, str(len(seen)).encode())

    assert os.waitstatus_to_exitcode(_in_child(count)) == 0
    os.close(writing)
    with os.fdopen(reading) as stream:
        return int(stream.read())


def killed_at(call: int, run: Callable[[], object]) -> None:
    """Kill ``run`` at its ``call``-th call that changes files: a write is half done, all else is not."""

    def watched() -> None:
        _watch(call)
        run()

    assert os.waitstatus_to_exitcode(_in_child(watched)) == -signal.SIGKILL


def _in_child(work: Callable[[], None]) -> int:
    """Returns the child's status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    code = 1
    try:
        torch.set_num_threads(1)
        work()
        code = 0
    finally:
        os._exit(code)


def _watch(last: int | None) -> list[str]:
    seen: list[str] = []
    for owner, name in _CALLS:
        _wrap(owner, name, seen, last)
    return seen


def _wrap(owner: Any, name: str, seen: list[str], last: int | None) -> None:
    original = getattr(owner, name)

    def watched(*arguments: Any, **named: Any) -> Any:
        seen.append(name)
        if len(seen) == last:
            if name == "pwrite":
                descriptor, data, offset = arguments
                original(descriptor, bytes(data)[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **named)

    setattr(owner, name, watched)
