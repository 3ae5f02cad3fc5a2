"""How a child process of the server gets what it needs to start, and how it exits with its parent.

Length and msgpack on standard input, which stays open: its end of file means that the parent has exited.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator
from typing import IO, Final, TypeVar

import msgspec

from blade_protocol import environment
from blade_telemetry import logs

_SHUTDOWN_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C and service managers send them to all processes; the supervisor drains and then stops the others."""
_LENGTH_BYTES: Final = 4
_PR_SET_PDEATHSIG: Final = 1
_Start = TypeVar("_Start", bound=msgspec.Struct)


def log_to_stderr(level: str, rank: int | None = None) -> None:
    """Log in the format of all processes, which the environment says to those that the first one starts.

    Args:
        rank: the process's, where it is one of several.
    """
    form: logs.LogFormat = "json" if os.environ.get(environment.LOG_FORMAT) == "json" else "text"
    text = logs.TEXT if rank is None else logs.TEXT.replace("%(message)s", f"rank {rank}: %(message)s")
    logs.configure(level, form, where={} if rank is None else {"rank": rank}, text=text)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Processes started inside the ``with`` block do not get SIGINT and SIGTERM before :func:`ignore_signals`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SHUTDOWN_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_signals() -> None:
    """Leave SIGINT and SIGTERM to the supervisor, those included that came since this process was started."""
    for number in _SHUTDOWN_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SHUTDOWN_SIGNALS)


def write_start(stream: IO[bytes], start: msgspec.Struct) -> None:
    """Send ``start`` to a new process and leave ``stream`` open."""
    payload = msgspec.msgpack.encode(start)
    stream.write(len(payload).to_bytes(_LENGTH_BYTES, "big") + payload)
    stream.flush()


def read_start(descriptor: int, kind: type[_Start]) -> _Start | None:
    """Read what :func:`write_start` sent, unbuffered. None when the parent has exited already."""
    data = b""
    while (missing := _missing(data)) > 0:
        chunk = os.read(descriptor, missing)
        if not chunk:
            return None
        data += chunk
    return msgspec.msgpack.decode(data[_LENGTH_BYTES:], type=kind)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when ``parent`` dies: a busy or stuck one would not see the end of file."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def freeze_gc_heap() -> None:
    """Leave what start-up made out of every later garbage collection: a full one took 40 ms in the middle of a step.

    The little of it that is garbage stays: to find it would take a tenth of the start.
    """
    gc.freeze()
    gc.enable()


def _missing(data: bytes) -> int:
    """Bytes to read next; what follows the message is left in the pipe."""
    if len(data) < _LENGTH_BYTES:
        return _LENGTH_BYTES - len(data)
    return _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big") - len(data)
