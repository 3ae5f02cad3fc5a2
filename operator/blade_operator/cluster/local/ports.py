"""TCP ports on this machine: finding free ones, and naming who holds one that is not."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from blade_operator.cluster.local.errors import PortInUse

_RANGE = range(20_000, 32_000)
"""Below the kernel's ephemeral ports, so that no outgoing connection takes one between choice and use."""


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on it now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port(taken: Container[int]) -> int:
    """A free port that is not among ``taken`` either.

    Raises:
        PortInUse: none was found.
    """
    for port in random.sample(_RANGE, k=200):
        if port not in taken and is_free(port):
            return port
    raise PortInUse(f"no free port among {_RANGE.start} to {_RANGE.stop - 1}")


def first_free(candidates: Iterable[int], taken: Container[int], soon: Container[int]) -> int:
    """The first of ``candidates`` that is not ``taken`` and is free, or will be ``soon``."""
    for port in candidates:
        if port not in taken and (port in soon or is_free(port)):
            return port
    raise PortInUse("no free port is left for another service")


def require_free(port: int, option: str) -> None:
    """Raises:
    PortInUse: naming the program that holds ``port``, as far as this user may see it.
    """
    if is_free(port):
        return
    raise PortInUse(f"port {port} is in use by {holder(port)}: stop it, or choose another port with {option}")


@dataclass(frozen=True, slots=True)
class Holder:
    """A program that listens; ``pid`` is None when it is not for this user to see."""

    name: str
    pid: int | None

    def __str__(self) -> str:
        return self.name if self.pid is None else f"{self.name} (pid {self.pid})"


def holder(port: int) -> Holder:
    """The program that listens on ``port``."""
    inodes = {inode for table in ("tcp", "tcp6") for inode in _listening(port, table)}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or belongs to another user
            if any(_link(process / "fd" / number) in inodes for number in os.listdir(process / "fd")):
                return Holder((process / "comm").read_text().strip(), int(process.name))
    return Holder("another program", None)


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:  # closed meanwhile
        return ""


def _listening(port: int, table: str) -> Iterable[str]:
    try:
        lines = Path("/proc/net", table).read_text().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        column = line.split()
        if column[3] == "0A" and int(column[1].rsplit(":", 1)[1], 16) == port:
            yield f"socket:[{column[9]}]"
