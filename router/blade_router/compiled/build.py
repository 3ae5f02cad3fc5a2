"""Compiling the hot path with mypyc: all modules into one library, so that calls between them are calls in C.

A folder of compiled modules is renamed into place when it is complete, so processes at the same time never see half of
one. Modules stay interpreted that have what mypyc does not know or drops without a word (`hazards.lost`); sources that
would be compiled to something else are refused (`hazards.hazards`).
"""

import ast
import fcntl
import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

from blade_router.compiled.hazards import bases, hazards, heirs, lost
from blade_router.compiled.sources import LIBRARY, SUFFIX, SWITCH, cache, folder_name, hot_sources

ROOT: Final = Path(__file__).resolve().parents[3]
"""Of the source tree, where mypy's settings are."""
REQUIREMENTS: Final = ("mypy>=2.4", "setuptools", "msgspec>=0.19", "prometheus-client>=0.21")
"""What the build needs beside a C compiler: mypy has to see the types of what these modules import."""
_OPTIMISATION: Final = "2"
_SECONDS: Final = 1200
_SCRATCH: Final = "building-"
_KEPT: Final = 8
"""Builds, of a few megabytes each."""


class BuildError(Exception):
    """The hot path cannot be compiled here; the message says why."""


def compiler() -> str | None:
    """The C compiler for extension modules; None: there is none, or Python's headers are not there."""
    command = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    found = shutil.which(command[0]) or shutil.which("gcc") or shutil.which("cc")
    return found if Path(sysconfig.get_path("include"), "Python.h").exists() else None


def compilable(source: Path) -> bool:
    """The module means the same when it is compiled, if it has no hazards."""
    return not lost(_parse(source), _known_bases())


@functools.cache
def _known_bases() -> dict[str, list[str]]:
    """Parents of the classes of the hot path."""
    return {name: parents for source in hot_sources() for name, parents in bases(_parse(source)).items()}


def _parse(source: Path) -> ast.Module:
    return ast.parse(source.read_bytes())


def refuse_hazards() -> None:
    """Refuse sources that would be compiled to something else.

    Raises:
        BuildError: names each place.
    """
    hot = [source for source in hot_sources() if compilable(source)]
    rest = [_parse(source) for source in hot_sources() if source not in hot]
    found = [f"{source}:{each}" for source in hot for each in hazards(_parse(source))]
    found += heirs(rest, map(_parse, hot))
    if found:
        raise BuildError("\n".join(("mypyc compiles these to something else (docs/decisions/0018):", *found)))


def build() -> Path:
    """The folder with the compiled modules of the sources as they are now, compiled if it is not there.

    Raises:
        BuildError: no compiler, no mypy, mypy does not take the sources, or they changed meanwhile.
    """
    try:
        folder = cache() / folder_name()
    except RuntimeError as error:
        raise BuildError(f"{error}; set XDG_CACHE_HOME to a writable folder") from None
    if folder.exists():
        os.utime(folder)  # in use
        return folder
    if not (ROOT / "pyproject.toml").exists():
        raise BuildError(f"there is no source tree at {ROOT}")
    if compiler() is None:
        raise BuildError("there is no C compiler with Python's headers")
    refuse_hazards()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.parent.chmod(0o700)  # what others can write to is not loaded
        with open(folder.parent / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the second process waits and finds the work done
            if not folder.exists():
                _remove_leftovers(folder.parent)
                with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=folder.parent) as scratch:
                    _compile_apart(Path(scratch))
                    if folder_name() != folder.name:
                        raise BuildError("the sources changed meanwhile; compile them again")
                    Path(scratch, "modules").chmod(0o700)
                    Path(scratch, "modules").rename(folder)
                    _prune(folder.parent)
    except OSError as error:
        raise BuildError(f"cannot write {folder}: {error}; set XDG_CACHE_HOME to a writable folder") from error
    return folder


def _remove_leftovers(place: Path) -> None:
    """Of builds that were killed."""
    for folder in place.glob(f"{_SCRATCH}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _prune(place: Path) -> None:
    """Keep the newest builds only; a process that runs an older one keeps its files."""
    folders = sorted((each for each in place.iterdir() if each.is_dir()), key=lambda each: each.stat().st_mtime)
    for folder in folders[:-_KEPT]:
        shutil.rmtree(folder, ignore_errors=True)


def _compile_apart(scratch: Path) -> None:
    """Compile in a process of its own: mypyc ends the one it runs in when it finds an error."""
    environment = {**os.environ, "CC": compiler() or "cc", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment[SWITCH] = "0"
    command = [sys.executable, "-m", "blade_router.compiled", "--into", str(scratch)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"compiling did not end in {_SECONDS} s") from None
    if done.returncode:
        raise BuildError((done.stdout + done.stderr).strip()[-4000:])


def compile_into(scratch: Path) -> None:
    """Compile into the folder ``modules`` of an empty one. The working directory is the source tree's root.

    Raises:
        SystemExit: mypyc does not take the sources.
    """
    try:
        from setuptools import Distribution  # before mypyc, which asks whether it was imported
        from mypyc.build import mypycify  # isort: skip
    except ImportError as error:
        raise SystemExit(f"{error}; install {' '.join(REQUIREMENTS)}") from None
    sources = [str(source) for source in hot_sources() if compilable(source)]
    options = ["--config-file", "pyproject.toml", "--ignore-missing-imports", "--cache-dir", str(scratch / "mypy")]
    extensions = mypycify(
        [*options, *sources],
        opt_level=_OPTIMISATION,
        debug_level="0",
        group_name=LIBRARY.removesuffix("__mypyc"),
        target_dir=str(scratch / "c"),
    )
    command = Distribution({"name": "blade_router", "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(scratch / "tree"), str(scratch / "objects")
    command.parallel = len(os.sched_getaffinity(0))
    command.ensure_finalized()
    command.run()
    modules = scratch / "modules"
    modules.mkdir()
    for path in (scratch / "tree").rglob(f"*{SUFFIX}"):
        name = ".".join(path.relative_to(scratch / "tree").parts)
        path.rename(modules / name)
