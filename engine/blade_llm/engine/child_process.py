"""What the engine's child processes share: how they find what they are to build, how they report why they fail,
and what is said of those that report nothing."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from signal import SIGKILL, Signals
from typing import Any, Final, TypeVar

import msgspec

from blade_llm.engine.messages import EngineFailure
from blade_llm.engine.start import die_with_parent, ignore_signals, read_start
from blade_llm.models.errors import ModelFilesError, NotEnoughMemoryError

_MOST_CHARACTERS: Final = 7_000
"""Length limit of a message and a traceback: at four bytes each both fit into the pipe, read only after the exit."""

_Start = TypeVar("_Start", bound=msgspec.Struct)


class ChildFailedError(RuntimeError):
    """A child process failed, and this one with it; ``failure`` is what the child reported."""

    def __init__(self, failure: EngineFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def load_build(target: str) -> Callable[[Any], Any]:
    """The function ``target`` (``MODULE:NAME``), once the module's ``preload``, if there is one, has returned."""
    module_name, _, name = target.partition(":")
    module = importlib.import_module(module_name)
    getattr(module, "preload", lambda: None)()
    build: Callable[[Any], Any] = getattr(module, name)
    return build


def begin(kind: type[_Start]) -> _Start | None:
    """The first thing that a child process does: what its parent sends it to start with, or None if that has exited.

    The modules of the targets on the command line are imported while the parent finds out the rest.
    """
    parent = os.getppid()
    ignore_signals()
    faulthandler.enable()
    die_with_parent(parent)
    gc.disable()  # until the start is over: an import makes much and frees little
    for target in sys.argv[1:]:
        with contextlib.suppress(Exception):  # comes again when it is to build, where it is reported
            load_build(target)
    return read_start(sys.stdin.fileno(), kind)


def failure_of(error: BaseException) -> EngineFailure:
    """What to report of an exception that ends this process; a child's failure is passed on as it is."""
    if isinstance(error, ChildFailedError):
        return error.failure
    user_error = isinstance(error, ModelFilesError | NotEnoughMemoryError)
    return EngineFailure(
        message=(str(error) if user_error else f"{type(error).__name__}: {error}")[:_MOST_CHARACTERS],
        traceback="".join(traceback.format_exception(error))[-_MOST_CHARACTERS:],
        user_error=user_error,
    )


def report_failure(pipe: int, failure: msgspec.Struct) -> None:
    """Write ``failure`` to the inherited descriptor ``pipe``."""
    os.write(pipe, msgspec.msgpack.encode(failure))


def silent_failure(process: str, code: int) -> EngineFailure:
    """Why ``process``, which computes, has exited where it reported nothing itself."""
    hint = "; the kernel does this when memory runs out: see dmesg, lower --kv_cache_bytes"
    return EngineFailure(message=describe_exit(process, code) + (hint if -code == SIGKILL else ""))


def describe_exit(process: str, code: int) -> str:
    """How ``process`` ended, from what :meth:`subprocess.Popen.wait` says."""
    if code >= 0:
        return f"{process} exited with status {code}"
    return f"{process} was ended by {Signals(-code).name}"
