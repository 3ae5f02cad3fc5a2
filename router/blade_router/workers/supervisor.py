"""Supervisor of several processes behind the same ports: the parent serves nothing and keeps N children that do.

Each child gets listening sockets of its own (SO_REUSEPORT: the kernel spreads connections over them) that the parent
keeps open: connections made while a child is being replaced wait for the next one instead of being refused.
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
from blade_router.workers import hash_seed

logger = logging.getLogger("blade_router.workers")

VARIABLE = "BLADE_ROUTER_WORKER"
"""The environment variable with a child's ``Worker.encode``."""
SHARED_BYTES = 8 << 20
"""Shared memory of all children: limits and counters, each child writing its own part."""
INITIAL_BACKOFF = 0.1
MAX_BACKOFF = 10.0
"""Backoff in seconds before a dead child is replaced; each early death doubles it."""
STABLE_SECONDS = 10.0
"""Uptime in seconds after which a death is no longer early and resets the backoff."""
STOP_GRACE_SECONDS = 5.0
"""Seconds after ``--drain_timeout`` in which a child must have ended."""

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Worker:
    """A child process's inheritance; numbers are inherited file descriptors."""

    index: int
    listener: int
    admin_listener: int
    shared: int
    parent: int
    """The parent-death pipe: it reaches its end when the parent dies."""
    folder: Path
    """Private folder of the children's sockets for each other."""

    def encode(self) -> str:
        numbers = (self.index, self.listener, self.admin_listener, self.shared, self.parent)
        return ",".join(map(str, (*numbers, self.folder)))

    @classmethod
    def decode(cls, text: str) -> "Worker":
        *numbers, folder = text.split(",", 5)
        index, listener, admin, shared, parent = map(int, numbers)
        return cls(index, listener, admin, shared, parent, Path(folder))

    @property
    def socket(self) -> Path:
        return self.folder / f"{self.index}.sock"


def unblock_signals() -> None:
    """Unblock the signals that the parent blocked, so that none was lost until now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


class _Child:
    """The slot of one child: its listening sockets and its present process."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.listeners: list[socket.socket] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        self.delay = INITIAL_BACKOFF
        self.start_at = 0.0

    def stop_listening(self) -> None:
        for listener in self.listeners:
            listener.close()
        self.listeners.clear()


class Supervisor:
    """Starts the children, restarts those that die, and forwards a stop.

    Args:
        arguments: the command line without the program, which the children get too.
        addresses: host and port of the public and of the admin listener, both ``shareable``.
        pass_fds: further descriptors for every child.

    Raises:
        OSError: from the constructor, when a port is in use.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        workers: int,
        addresses: Sequence[tuple[str, int]],
        *,
        drain_timeout: float,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._command = [sys.executable, "-m", "blade_router.app", *arguments]
        self._drain_timeout = drain_timeout
        self._pass_fds = pass_fds
        self._addresses = addresses
        self._children = [_Child(index) for index in range(workers)]
        for child in self._children:
            self._listen(child)
        self._folder = Path(tempfile.mkdtemp(prefix="blade-router-"))
        self._hash_seed = hash_seed.random()
        self._shared = os.memfd_create("blade_router")
        os.ftruncate(self._shared, SHARED_BYTES)
        self._parent_pipe, self._parent_pipe_end = os.pipe()

    def _listen(self, child: _Child) -> None:
        """Open a child's sockets, all or none."""
        try:
            for address in self._addresses:
                child.listeners.append(listen(*address, shared=True))
        except OSError:
            child.stop_listening()
            raise

    def run(self) -> int:
        """Run until SIGTERM or SIGINT, or until it is clear that no child can start; returns the exit status."""
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
            for number in (self._shared, self._parent_pipe, self._parent_pipe_end):
                os.close(number)
            signal.pthread_sigmask(signal.SIG_SETMASK, old)

    def _watch(self) -> int:
        while True:
            waiting = [child.start_at for child in self._children if child.process is None]
            seconds = max(0.0, min(waiting, default=time.monotonic() + 60.0) - time.monotonic())
            received = signal.sigtimedwait(_SIGNALS, seconds)
            if received is not None and received.si_signo != signal.SIGCHLD:
                # A terminal sends SIGINT to the children as well, and a second one would stop them at once.
                return self._stop(signal.SIGTERM)
            for child in self._children:
                if child.process is None:
                    if child.start_at <= time.monotonic():
                        self._restart(child)
                elif (status := child.process.poll()) is not None and not self._reap(child, status):
                    self._stop(signal.SIGTERM)
                    return status if status > 0 else 1

    def _restart(self, child: _Child) -> None:
        """Restart a child. The machine may be short of processes or descriptors: the others go on serving."""
        try:
            self._start(child)
        except OSError as error:
            logger.error("worker %d cannot be started (%s); retry in %g s", child.index, error, child.delay)
            child.start_at = time.monotonic() + child.delay
            child.delay = min(MAX_BACKOFF, 2 * child.delay)

    def _start(self, child: _Child) -> None:
        if not child.listeners:
            self._listen(child)
        public, admin = (listener.fileno() for listener in child.listeners)
        worker = Worker(child.index, public, admin, self._shared, self._parent_pipe, self._folder)
        child.process = subprocess.Popen(
            self._command,
            env={hash_seed.VARIABLE: self._hash_seed} | os.environ | {VARIABLE: worker.encode()},
            pass_fds=(public, admin, worker.shared, worker.parent, *self._pass_fds),
        )
        child.started = time.monotonic()

    def _reap(self, child: _Child, status: int) -> bool:
        """Handle a child's exit. False: it never got as far as to serve, so a restart would not either."""
        child.process = None
        served = self._folder / f"{child.index}.sock"
        if not served.exists():
            logger.error("worker %d ended with status %d before it served", child.index, status)
            return False
        served_for = time.monotonic() - child.started
        if served_for >= STABLE_SECONDS:
            child.delay = INITIAL_BACKOFF
        logger.error(
            "worker %d ended with status %d after %.0f s; another starts in %g s",
            *(child.index, status, served_for, child.delay),
        )
        child.start_at = time.monotonic() + child.delay
        if child.delay > 1.0:
            child.stop_listening()  # a crash loop: leave its connections to the others meanwhile
        child.delay = min(MAX_BACKOFF, 2 * child.delay)
        return True

    def _stop(self, number: int) -> int:
        """Forward a signal, and those that follow it, until all children have ended."""
        for child in self._children:
            child.stop_listening()
        end = time.monotonic() + self._drain_timeout + STOP_GRACE_SECONDS
        while True:
            running = [child.process for child in self._children if child.process is not None]
            for process in running:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.send_signal(number)
            received = None
            while any(process.poll() is None for process in running):
                left = end - time.monotonic()
                if left <= 0:
                    logger.error("a worker did not end in time")
                    return 1
                received = signal.sigtimedwait(_SIGNALS, left)
                if received is not None and received.si_signo != signal.SIGCHLD:
                    number = received.si_signo
                    break
            else:
                return 0 if all(process.returncode == 0 for process in running) else 1
