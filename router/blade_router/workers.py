"""Several processes behind one port: the parent, which serves nothing and keeps N children that do.

Each child gets a listening socket of its own (SO_REUSEPORT: the kernel spreads connections over them) that the parent
keeps open: what connects while a child is being replaced waits for the next one instead of being refused.
"""

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blade_router.http.listening import listen

logger = logging.getLogger("blade_router.workers")

VARIABLE = "BLADE_ROUTER_WORKER"
"""How a child learns what it is: ``Worker.encode``."""
SHARED_BYTES = 4 << 20
"""Memory that all children map: limits and counters, each child writing its own part."""
FIRST_DELAY = 0.1
MOST_DELAY = 10.0
"""Seconds before a child that died is replaced; each death in short order doubles it."""
LIVED = 10.0
"""Seconds after which a death is not in short order."""
GRACE = 5.0
"""Seconds after ``--drain_timeout`` in which a child must have ended."""

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Worker:
    """What a child process is given; numbers are inherited file descriptors."""

    index: int
    listener: int
    shared: int
    parent: int
    """A pipe that ends when the parent does."""
    folder: Path
    """Private: the children's sockets for each other."""

    def encode(self) -> str:
        return f"{self.index},{self.listener},{self.shared},{self.parent},{self.folder}"

    @classmethod
    def decode(cls, text: str) -> "Worker":
        *numbers, folder = text.split(",", 4)
        index, listener, shared, parent = map(int, numbers)
        return cls(index, listener, shared, parent, Path(folder))

    @property
    def socket(self) -> Path:
        return self.folder / f"{self.index}.sock"


def begin_child() -> None:
    """Signals were blocked in the parent, so that none was lost until now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


class _Child:
    """The place of one child: its socket, and the process that has it at the moment."""

    def __init__(self, index: int, listener: socket.socket) -> None:
        self.index = index
        self.listener: socket.socket | None = listener
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        self.delay = FIRST_DELAY
        self.start_at = 0.0


class Supervisor:
    """Starts the children, replaces those that die, and passes a stop on.

    Args:
        arguments: the command line without the program, which the children get too.
        host, port: where to listen; port 0 is chosen once, for all of them.
        pass_fds: further descriptors for every child.

    Raises:
        OSError: from the constructor, when the port is in use.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        workers: int,
        host: str,
        port: int,
        *,
        drain_timeout: float,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._command = [sys.executable, "-m", "blade_router.app", *arguments]
        self._drain_timeout = drain_timeout
        self._pass_fds = pass_fds
        with listen(host, port) as alone:  # sharing a port would hide that somebody else has it
            port = alone.getsockname()[1]
        self._address = host, port
        self._children = [_Child(index, listen(host, port, shared=True)) for index in range(workers)]
        self._folder = Path(tempfile.mkdtemp(prefix="blade-router-"))
        self._shared = os.memfd_create("blade_router")
        os.ftruncate(self._shared, SHARED_BYTES)
        self._alive, self._keeps_alive = os.pipe()

    def run(self) -> int:
        """Until SIGTERM or SIGINT, or until it is clear that no child can start; the exit status."""
        old = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            for child in self._children:
                self._start(child)
            return self._watch()
        finally:
            for child in self._children:
                if child.process is not None:
                    child.process.kill()
                    child.process.wait()
            shutil.rmtree(self._folder, ignore_errors=True)
            for number in (self._shared, self._alive, self._keeps_alive):
                os.close(number)
            signal.pthread_sigmask(signal.SIG_SETMASK, old)

    def _watch(self) -> int:
        while True:
            waiting = [child.start_at for child in self._children if child.process is None]
            seconds = max(0.0, min(waiting, default=time.monotonic() + 60.0) - time.monotonic())
            came = signal.sigtimedwait(_SIGNALS, seconds)
            if came is not None and came.si_signo != signal.SIGCHLD:
                # A terminal sends SIGINT to the children as well, to whom a second one means: at once.
                return self._stop(signal.SIGTERM)
            for child in self._children:
                if child.process is None:
                    if child.start_at <= time.monotonic():
                        self._start_again(child)
                elif (status := child.process.poll()) is not None and not self._bury(child, status):
                    self._stop(signal.SIGTERM)
                    return status if status > 0 else 1

    def _start_again(self, child: _Child) -> None:
        """The machine may be short of processes or descriptors for the moment: the others go on serving."""
        try:
            self._start(child)
        except OSError as error:
            logger.error("worker %d cannot be started (%s); again in %g s", child.index, error, child.delay)
            child.start_at = time.monotonic() + child.delay
            child.delay = min(MOST_DELAY, 2 * child.delay)

    def _start(self, child: _Child) -> None:
        if child.listener is None:
            child.listener = listen(*self._address, shared=True)
        worker = Worker(child.index, child.listener.fileno(), self._shared, self._alive, self._folder)
        child.process = subprocess.Popen(
            self._command,
            env=os.environ | {VARIABLE: worker.encode()},
            pass_fds=(worker.listener, worker.shared, worker.parent, *self._pass_fds),
        )
        child.started = time.monotonic()

    def _bury(self, child: _Child, status: int) -> bool:
        """A child ended by itself. False: it never got as far as to serve, so another would not either."""
        child.process = None
        served = self._folder / f"{child.index}.sock"
        if not served.exists():
            logger.error("worker %d ended with status %d before it served", child.index, status)
            return False
        served_for = time.monotonic() - child.started
        if served_for >= LIVED:
            child.delay = FIRST_DELAY
        logger.error(
            "worker %d ended with status %d after %.0f s; another starts in %g s",
            *(child.index, status, served_for, child.delay),
        )
        child.start_at = time.monotonic() + child.delay
        if child.delay > 1.0 and child.listener is not None:
            child.listener.close()  # it dies again and again: leave its connections to the others meanwhile
            child.listener = None
        child.delay = min(MOST_DELAY, 2 * child.delay)
        return True

    def _stop(self, number: int) -> int:
        """Pass a signal on, and those that follow it, until all children have ended."""
        for child in self._children:
            if child.listener is not None:
                child.listener.close()
        end = time.monotonic() + self._drain_timeout + GRACE
        while True:
            running = [child.process for child in self._children if child.process is not None]
            for process in running:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.send_signal(number)
            came = None
            while any(process.poll() is None for process in running):
                left = end - time.monotonic()
                if left <= 0:
                    logger.error("a worker did not end in time")
                    return 1
                came = signal.sigtimedwait(_SIGNALS, left)
                if came is not None and came.si_signo != signal.SIGCHLD:
                    number = came.si_signo
                    break
            else:
                return 0 if all(process.returncode == 0 for process in running) else 1
