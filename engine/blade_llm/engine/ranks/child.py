"""One rank's process as rank 0 sees it: spawned, watched and reaped by one thread of its own.

The thread also spawns it, because the kernel sends the parent-death signal when the *thread* that made the child ends:
an offline engine may be made by a thread that is soon gone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

import msgspec

from blade_llm.engine.child_process import silent_failure
from blade_llm.engine.ranks.lost import LostRank, named
from blade_llm.engine.ranks.messages import RankFailure, RankStart
from blade_llm.engine.start import signals_blocked, write_start

_PIPE_BYTES: Final = 1 << 16


class RankChild:
    """Spawns the process of ``rank`` and calls ``on_exit`` from a thread when it has exited, for whatever reason.

    :meth:`spawned` must return before anything else is called.
    """

    def __init__(self, rank: int, build: str, on_exit: Callable[[LostRank], None]) -> None:
        self.rank = rank
        self._build = build
        self._on_exit = on_exit
        self._spawned: Future[subprocess.Popen[bytes]] = Future()
        self._failure, self.failure_pipe = os.pipe()
        """The other end is the child's."""
        self._thread = threading.Thread(target=self._run, name=f"rank-{rank}-monitor", daemon=True)
        self._thread.start()

    def spawned(self) -> None:
        """Wait until the process is there. Raises ``OSError``: it cannot be spawned."""
        self._spawned.result()

    @property
    def pid(self) -> int:
        return self._spawned.result().pid

    def start(self, start: RankStart) -> None:
        """Let the process load its part of the model. To be called once."""
        stdin = self._spawned.result().stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):  # died at once: on_exit is called with why
            write_start(stdin, start)

    def stop(self) -> None:
        """Let the process exit by end of file on its standard input."""
        if self._spawned.exception() is not None:
            return
        stdin = self._spawned.result().stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            stdin.close()

    def kill(self) -> None:
        """SIGKILL, which also ends a process that is stopped."""
        if self._spawned.exception() is None:
            self._spawned.result().kill()

    def join(self, seconds: float | None = None) -> None:
        """Wait until the process has exited and ``on_exit`` has returned."""
        if threading.current_thread() is not self._thread:  # which garbage collection may have chosen
            self._thread.join(seconds)

    def _run(self) -> None:
        with os.fdopen(self._failure, "rb") as failure:
            try:
                process = self._spawn()
            except BaseException as error:
                self._spawned.set_exception(error)
                return
            finally:
                os.close(self.failure_pipe)
            self._spawned.set_result(process)
            code = process.wait()
            os.set_blocking(failure.fileno(), False)  # a process that the rank left behind may hold the other end
            data = failure.read(_PIPE_BYTES) or b""
        self._on_exit(_lost(self.rank, code, data))

    def _spawn(self) -> subprocess.Popen[bytes]:
        with signals_blocked():
            return subprocess.Popen(
                [sys.executable, "-m", "blade_llm.engine.ranks.worker", self._build],
                stdin=subprocess.PIPE,
                pass_fds=(self.failure_pipe,),
            )


def _lost(rank: int, code: int, data: bytes) -> LostRank:
    """What is known of a process that exited with ``code`` after it wrote ``data``."""
    try:
        reported = msgspec.msgpack.decode(data, type=RankFailure)
    except msgspec.DecodeError:
        return LostRank(rank, silent_failure(f"rank {rank}", code))
    return LostRank(rank, named(rank, reported.failure), reported.consequence)
