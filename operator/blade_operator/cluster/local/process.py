"""One program as a process that outlives this one: in its own session, its output in a file.

It is found again by pid and start time. A control loop that was killed leaves its programs running; the next one adopts
them. It is not their parent, so it waits for a process file descriptor (``pidfd``) and cannot learn the exit code: that
is then unknown, and said to be.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MARK = "BLADE_LOCAL_RUNTIME"
"""Environment variable that every process of a runtime and their descendants carry: the state folder."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process and no other: pids come round again, their start times (clock ticks since boot) do not."""

    boot: str
    pid: int
    start: int

    def __str__(self) -> str:
        return f"process://{self.boot}/{self.pid}/{self.start}"

    @staticmethod
    def parse(text: str) -> ProcessId | None:
        """The identity that ``str`` wrote as ``text`` (a pod's ``containerID``), or None."""
        if not text.startswith("process://"):
            return None
        boot, pid, start = text.removeprefix("process://").split("/")
        return ProcessId(boot, int(pid), int(start))

    @staticmethod
    def of(pid: int) -> ProcessId | None:
        """The process that has ``pid`` now, or None when it is gone (a zombie is)."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = text[
            text.rindex(")") + 2 :
        ].split()  # the name, which may hold blanks and parentheses, ends at field 2
        if fields[0] in "ZX":
            return None
        return ProcessId(_boot_id(), pid, int(fields[19]))


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]


class Process:
    """A running program and its process group. Needs a running event loop."""

    def __init__(self, identity: ProcessId, descriptor: int, child: subprocess.Popen[bytes] | None) -> None:
        self.identity = identity
        self._descriptor = descriptor
        self._child = child
        self._exit: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(descriptor, self._exited)

    @staticmethod
    def start(
        argv: list[str], environment: Mapping[str, str], folder: Path, log: Path, inherited: Collection[int] = ()
    ) -> Process:
        """Run ``argv``; what it prints is appended to ``log``. ``inherited`` are file descriptors it keeps.

        Raises:
            OSError: the program cannot be run.
        """
        with open(log, "ab") as output:  # append mode: the file may be cut while it is written
            child = subprocess.Popen(
                argv,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=inherited,
            )
        identity = ProcessId.of(child.pid) or ProcessId(_boot_id(), child.pid, 0)
        return Process(identity, os.pidfd_open(child.pid), child)

    @staticmethod
    def adopt(identity: ProcessId) -> Process | None:
        """Take over a process another loop started; None when it is gone, and then with all of its process group."""
        try:
            descriptor = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            _kill_rest(identity)
            return None
        if ProcessId.of(identity.pid) != identity:
            os.close(descriptor)
            _kill_rest(identity)
            return None
        return Process(identity, descriptor, None)

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self._exit.done()

    async def wait(self) -> int | None:
        """Its exit code (128 + n after signal n), or None when only its end could be seen."""
        return await asyncio.shield(self._exit)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program itself, as Kubernetes does to process 1 of a container."""
        if not self.ended:
            try:
                signal.pidfd_send_signal(self._descriptor, number)
            except ProcessLookupError:
                pass

    def kill(self) -> None:
        """End the program and everything in its process group now."""
        if not self.ended:
            _kill_group(self.identity.pid)

    def detach(self) -> None:
        """Stop watching; the program runs on."""
        if not self.ended:
            self._close()
            self._exit.cancel()

    def _exited(self) -> None:
        _kill_group(self.identity.pid)  # before the pid is reaped and may be given away; a container ends as a whole
        self._close()
        code = self._child.wait() if self._child is not None else None
        self._exit.set_result(code if code is None or code >= 0 else 128 - code)

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)


def _kill_rest(gone: ProcessId) -> None:
    """Kill what is left of the process group of a program that is gone. No other process gets a group's number as its
    pid while the group has members."""
    if gone.boot == _boot_id() and ProcessId.of(gone.pid) is None:
        _kill_group(gone.pid)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def marked(state: Path) -> Iterator[int]:
    """Pids of all living processes that descend from the runtime on ``state``."""
    mark = f"{MARK}={state}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = path.read_bytes()
        except OSError:
            continue
        if mark in environment.split(b"\0"):
            yield int(path.parent.name)


def kill_strays(state: Path, keep: Collection[int] = ()) -> list[int]:
    """Kill what ``marked`` finds outside the process groups in ``keep``: started by a loop that died before it wrote it
    down, or left behind by a program that ended. Returns their pids."""
    killed = []
    for pid in marked(state):
        try:
            if pid != os.getpid() and os.getpgid(pid) not in keep:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        except ProcessLookupError:
            continue
    return killed
