"""Processes that outlive the command that started them, and are found again by what it wrote down.

A process is recorded with its start time: a process id alone may meanwhile belong to somebody else.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class ProcessDied(Exception):
    """A process ended that should not have; the message holds the end of its log."""


class NotReady(Exception):
    """Something did not become ready in time."""


def start_time(pid: int) -> int | None:
    """When a process began (clock ticks since boot); None if there is none, or only its zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def tail(log: Path, lines: int = 20) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"(no log: {error})"


class Processes:
    """The processes of one cluster: ``records``/NAME.json says which, ``logs``/NAME.log has their output."""

    def __init__(self, records: Path, logs: Path) -> None:
        self.records = records
        self.logs = logs
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a process in a session of its own (Ctrl-C in the terminal does not reach it)."""
        for folder in (self.records, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )
        self._children.append(child)
        record = {"pid": child.pid, "started": start_time(child.pid), "argv": list(argv)}
        (self.records / f"{name}.json").write_text(json.dumps(record))

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.records.glob("*.json"))

    def pid(self, name: str) -> int | None:
        """Id of the recorded process, if it still runs."""
        try:
            record = json.loads((self.records / f"{name}.json").read_text())
        except (OSError, ValueError):
            return None
        pid = int(record["pid"])
        return pid if record["started"] is not None and start_time(pid) == record["started"] else None

    def check(self) -> None:
        """Raise ProcessDied, with the end of its log, if any recorded process is gone."""
        for name in self.names():
            if self.pid(name) is None:
                raise ProcessDied(f"{name} died; the end of its log:\n{tail(self.logs / f'{name}.log')}")

    def wait(self, what: str, ready: Callable[[], T | None], timeout: float = 60.0) -> T:
        """Wait until ``ready()`` is true; raises ProcessDied or NotReady."""
        deadline = time.monotonic() + timeout
        while not (value := ready()):
            self.check()
            if time.monotonic() > deadline:
                raise NotReady(f"{what} is not ready after {timeout:g} s")
            time.sleep(0.1)
        return value

    def reap(self) -> None:
        """Collect children that ended, so that no zombies stay while this process lives."""
        for child in self._children:
            child.poll()


def kill(pids: Sequence[int], timeout: float = 10.0) -> list[int]:
    """SIGKILL, and wait until they are gone; returns those that are not."""
    alive = {pid: start_time(pid) for pid in pids}
    alive = {pid: started for pid, started in alive.items() if started is not None}
    for pid in alive:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    deadline = time.monotonic() + timeout
    while alive and time.monotonic() < deadline:
        alive = {pid: started for pid, started in alive.items() if start_time(pid) == started}
        time.sleep(0.02)
    return list(alive)
