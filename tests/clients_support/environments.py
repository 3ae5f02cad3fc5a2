"""The environments client libraries are installed in: one a group of programs, in the user's cache.

A group of Python's is a ``requirements/GROUP.txt``, whose ``GROUP.lock.txt`` beside it is what is installed; a group
of npm's is a folder with a ``package-lock.json``. An environment's name holds a hash of its lock file, so that a fresh
clone finds what an earlier one installed.

``python -m clients_support.environments`` (``make clients``) installs them all.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

CLIENTS = Path(__file__).parents[1] / "clients"
REQUIREMENTS = CLIENTS / "requirements"
BORROWS = "# borrows the project's own packages"
"""A line of a group's requirements: what it does not install is taken from this environment, as torch is."""
_DONE = ".installed"


def python_groups() -> list[str]:
    """The names of the groups of Python's."""
    return sorted(path.name.removesuffix(".lock.txt") for path in REQUIREMENTS.glob("*.lock.txt"))


def npm_groups() -> list[str]:
    """The names of the groups of npm's, which are those of their folders."""
    return sorted(path.parent.name for path in CLIENTS.glob("*/package-lock.json"))


def python_of(group: str) -> Path:
    """The interpreter of a group.

    Raises:
        FileNotFoundError: it is not installed.
    """
    return _installed(group, REQUIREMENTS / f"{group}.lock.txt") / "bin" / "python"


def modules_of(group: str) -> Path:
    """The ``node_modules`` of a group.

    Raises:
        FileNotFoundError: it is not installed.
    """
    return _installed(group, CLIENTS / group / "package-lock.json") / "node_modules"


def install_python(group: str) -> None:
    """A virtual environment of exactly what the group's lock file lists.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    lock = REQUIREMENTS / f"{group}.lock.txt"

    def fill(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--requirement", lock], check=True)

    folder = _cached(group, lock)
    _once(folder, fill)
    if BORROWS in (REQUIREMENTS / f"{group}.txt").read_text(
        encoding="utf-8"
    ):  # from this clone, not from an earlier one
        (site,) = (folder / "lib").glob("python*/site-packages")
        (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")


def install_npm(group: str) -> None:
    """The packages of the group's lock file, and a link to them where its programs look.

    Raises:
        subprocess.CalledProcessError: npm failed.
    """
    source = CLIENTS / group
    cached = _cached(group, source / "package-lock.json")

    def fill(folder: Path) -> None:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(source / name, folder)
        subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=folder, check=True)

    _once(cached, fill)
    link = source / "node_modules"
    link.unlink(missing_ok=True)
    link.symlink_to(cached / "node_modules")


def _installed(group: str, lock: Path) -> Path:
    folder = _cached(group, lock)
    if not (folder / _DONE).exists():
        raise FileNotFoundError(f"the client libraries of {group!r} are not installed: make clients")
    return folder


def _cached(group: str, lock: Path) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    python = f"{sys.base_prefix} {sys.version}" if lock.parent == REQUIREMENTS else ""
    digest = hashlib.sha256(lock.read_bytes() + python.encode()).hexdigest()
    return base / "bladellm" / "clients" / f"{group}-{digest[:12]}"


def _once(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill it, unless it is; what an attempt that failed left in it is gone."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / _DONE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            fill(folder)
            (folder / _DONE).touch()


def main() -> None:
    for group in python_groups():
        print(f"{group} ...", flush=True)
        install_python(group)
    for group in npm_groups():
        print(f"{group} (npm) ...", flush=True)
        install_npm(group)


if __name__ == "__main__":
    main()
