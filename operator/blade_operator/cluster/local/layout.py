"""Folder layout of a local runtime, and the lock that gives its state folder to one control loop."""

from __future__ import annotations

import fcntl
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blade_operator.cluster.local.errors import LocalError, StateInUse

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths inside ``root``."""

    root: Path

    @staticmethod
    def of(name: str) -> Layout:
        """The folder of the runtime called ``name``: ``$XDG_STATE_HOME/bladellm/NAME``."""
        if not _NAME.fullmatch(name):
            raise LocalError(f"--name {name!r}: use lower-case letters, digits and '-'")
        state_home = os.environ.get("XDG_STATE_HOME") or ""
        base = Path(state_home) if os.path.isabs(state_home) else Path.home() / ".local" / "state"
        return Layout(base / "bladellm" / name)

    @property
    def objects(self) -> Path:
        """One JSON file per object: ``KIND/NAMESPACE/NAME.json``."""
        return self.root / "objects"

    @property
    def pods(self) -> Path:
        """One folder per pod: logs, volumes, termination messages."""
        return self.root / "pods"

    @property
    def claims(self) -> Path:
        """PersistentVolumeClaims, kept when everything else is deleted."""
        return self.root / "volumes"

    @property
    def endpoints(self) -> Path:
        """``NAMESPACE/SERVICE.json``: the endpoints of a Service now."""
        return self.root / "endpoints"

    @property
    def socket(self) -> Path:
        """The Unix socket on which the control loop serves commands."""
        return self.root / "loop.sock"

    @property
    def lock(self) -> Path:
        """The lock file that the control loop holds while it runs."""
        return self.root / "lock"

    def pod(self, pod: dict[str, Any]) -> Path:
        """The folder of one pod."""
        metadata = pod["metadata"]
        return self.pods / f"{metadata['namespace']}_{metadata['name']}_{metadata['uid'][:8]}"

    def create(self) -> None:
        """Make the folder, for this user only: it holds Secrets."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)


class StateLock:
    """An exclusive claim on a state folder; the kernel drops it when the process ends, however it ends."""

    def __init__(self, layout: Layout) -> None:
        layout.create()
        self._descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise StateInUse(
                f"another control loop (pid {holder}) runs on {layout.root}: "
                "use it, stop it with Ctrl-C, or start a second one under another --name"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the folder up."""
        os.close(self._descriptor)


def loop_is_running(layout: Layout) -> bool:
    """Whether some process holds the lock."""
    try:
        descriptor = os.open(layout.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def progress_file(pod: Path) -> Path:
    """Where the program of a Job says how far it is. ``pod``: the folder of its pod."""
    return pod / "progress"
