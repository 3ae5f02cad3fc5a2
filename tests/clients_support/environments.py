"""The environments client libraries are installed in: one a group of programs, in the user's cache.

A group of Python's is a ``requirements/GROUP.txt``, whose ``GROUP.lock.txt`` beside it is what is installed; a group
of npm's is a folder with a ``package.json``, and mostly a lock file. An environment's name holds a hash of what it is
made of, so that a fresh clone finds what an earlier one installed.

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
from concurrent.futures import ThreadPoolExecutor
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
    return sorted(path.parent.name for path in CLIENTS.glob("*/package.json"))


def python_of(group: str) -> Path:
    """The interpreter of a group.

    Raises:
        FileNotFoundError: it is not installed.
    """
    return _complete(_python_folder(group)) / "bin" / "python"


def modules_of(group: str) -> Path:
    """The ``node_modules`` of a group.

    Raises:
        FileNotFoundError: it is not installed.
    """
    return _complete(_npm_folder(group)) / "node_modules"


def install_python(group: str) -> None:
    """A virtual environment of exactly what the group's lock file lists.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    lock = REQUIREMENTS / f"{group}.lock.txt"

    def fill(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [folder / "bin" / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--requirement", lock], check=True)

    folder = _python_folder(group)
    fill_once(folder, fill)
    if BORROWS in (REQUIREMENTS / f"{group}.txt").read_text(
        encoding="utf-8"
    ):  # from this clone, not from an earlier one
        (site,) = (folder / "lib").glob("python*/site-packages")
        (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")


def install_npm(group: str) -> None:
    """The group's packages, as locked where it has a lock file, and a link to them where its programs look.

    Raises:
        subprocess.CalledProcessError: npm failed.
    """
    source = CLIENTS / group
    cached = _npm_folder(group)

    def fill(folder: Path) -> None:
        for path in _npm_files(group):
            shutil.copy(path, folder)
        verb = "ci" if (folder / "package-lock.json").exists() else "install"
        subprocess.run(["npm", verb, "--silent", "--no-audit", "--no-fund"], cwd=folder, check=True)

    fill_once(cached, fill)
    link = source / "node_modules"
    link.unlink(missing_ok=True)
    link.symlink_to(cached / "node_modules")


def _python_folder(group: str) -> Path:
    lock = REQUIREMENTS / f"{group}.lock.txt"
    return cached_folder(group, lock.read_bytes(), f"{sys.base_prefix} {sys.version}".encode())


def _npm_folder(group: str) -> Path:
    return cached_folder(group, *(path.read_bytes() for path in _npm_files(group)))


def _npm_files(group: str) -> list[Path]:
    names = ("package.json", "package-lock.json", ".npmrc")
    return [path for name in names if (path := CLIENTS / group / name).exists()]


def cached_folder(group: str, *made_of: bytes) -> Path:
    """Where a group made of this is or will be installed."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "bladellm" / "clients" / f"{group}-{hashlib.sha256(b''.join(made_of)).hexdigest()[:12]}"


def _complete(folder: Path) -> Path:
    if not (folder / _DONE).exists():
        raise FileNotFoundError(f"{folder.name} is not installed: make clients")
    return folder


def fill_once(folder: Path, fill: Callable[[Path], None]) -> None:
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
    """Install them all, two at a time: half of it is waiting for registries."""
    jobs = [(install_python, group) for group in python_groups()] + [(install_npm, group) for group in npm_groups()]
    with ThreadPoolExecutor(2) as pool:
        for (_, group), done in zip(jobs, [pool.submit(install, group) for install, group in jobs], strict=True):
            done.result()
            print(f"{group} is installed", flush=True)


if __name__ == "__main__":
    main()
