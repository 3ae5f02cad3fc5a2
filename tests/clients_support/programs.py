"""The clients' programs: one a file, in the folder of its group, and how each is run."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from clients_support.environments import CLIENTS, modules_of, python_of

SECONDS = 600
"""At most so long for a program with all its cases, on a busy machine; most take a few seconds."""

_OFFLINE = {
    "NO_PROXY": "127.0.0.1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""None of them asks anything of the network; what only one client heeds stands in its program."""


@dataclass(frozen=True)
class Program:
    """A client's program; its folder's name is its group's."""

    path: Path

    @property
    def group(self) -> str:
        """The environment it runs in."""
        return self.path.parent.name

    def __str__(self) -> str:
        return str(self.path.relative_to(CLIENTS))


def programs() -> list[Program]:
    """All of them."""
    python = (CLIENTS / "programs").glob("*/*.py")
    npm = (path for path in CLIENTS.glob("*/*.mjs") if path.name != "case.mjs")
    return [Program(path) for path in sorted([*python, *npm])]


def command(program: Program, base_url: str, home: Path) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment to run it with.

    Raises:
        FileNotFoundError: its group is not installed, or there is no ``node``.
    """
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "BASE_URL": base_url,
        "MODEL": os.environ.get("MODEL", "demo-model"),
        "PYTHONPATH": str(CLIENTS / "programs"),
        "PYTHONDONTWRITEBYTECODE": "1",
        **_OFFLINE,
    }
    if program.path.suffix == ".mjs":
        node = shutil.which("node")
        if node is None:
            raise FileNotFoundError("node is not installed")
        modules_of(program.group)
        return [node, str(program.path)], environment
    return [str(python_of(program.group)), str(program.path)], environment
