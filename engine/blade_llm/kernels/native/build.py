"""Compiling the native operators: every ``kernels/*/native.cpp`` into an object, all objects into one library.

Objects and libraries are named by a hash of all that went into them and renamed into place when complete, so a changed
source is compiled again, processes at the same time never see half a file, and nothing ever needs to be invalidated.
Instruction sets are chosen per function at run time, so one library serves every x86-64 CPU.

OpenMP's symbols stay unresolved in the library: they bind to the OpenMP that torch has loaded, whatever its name.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

KERNELS: Final = Path(__file__).parent.parent
PREBUILT: Final = Path(__file__).with_name("libblade_native.so")
"""Where an image build puts the library (``python -m blade_llm.kernels.native build``)."""

FLAGS: Final = (
    *("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fno-math-errno", "-fvisibility=hidden"),
    # gcc 12 warns about the undefined operands of its own intrinsics
    *("-Wall", "-Wextra", "-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Wno-psabi"),
)
COMPILE_SECONDS: Final = 300


class BuildError(Exception):
    """The library cannot be built here; the message says why."""


def cached_library() -> Path:
    """The library of these sources and this compiler in the user's cache, compiled now if it is not there.

    Raises :class:`BuildError`.
    """
    compiler = _compiler()
    folder = _cache_folder()
    library = folder / f"libblade-{_digest(source_hash(), compiler[1])}.so"
    if not library.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / "lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # the second process waits and finds the work done
                if not library.exists():
                    _link(compiler, library)
        except OSError as error:
            raise BuildError(f"cannot write {folder}: {error}; set XDG_CACHE_HOME to a writable folder") from error
    return library


def prebuild(output: Path = PREBUILT) -> Path:
    """Build the library for an image: at ``output``, with the hash of its sources beside it. Raises BuildError."""
    shutil.copyfile(cached_library(), output)
    output.with_suffix(".hash").write_text(source_hash(), encoding="ascii")
    return output


def source_hash() -> str:
    """Hash of all sources and flags."""
    return _digest(*(_unit_hash(source) for source in _sources()))


def _link(compiler: tuple[str, str], library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        objects = []
        for source in _sources():
            compiled = library.parent / f"{source.parent.name}-{_digest(_unit_hash(source), compiler[1])}.o"
            if not compiled.exists():
                temporary = Path(scratch) / compiled.name
                _run([compiler[0], *FLAGS, f"-I{KERNELS / 'native'}", "-c", str(source), "-o", str(temporary)])
                temporary.rename(compiled)
            objects.append(str(compiled))
        temporary = Path(scratch) / library.name
        _run([compiler[0], "-shared", *objects, "-o", str(temporary)])
        temporary.rename(library)


def _sources() -> list[Path]:
    return sorted(KERNELS.glob("*/native.cpp"))


def _unit_hash(source: Path) -> str:
    """Of a source, the headers beside it and the shared ones."""
    headers = sorted({*source.parent.glob("*.h"), *(KERNELS / "native").glob("*.h")})
    return _digest(*FLAGS, *(file.read_text(encoding="utf-8") for file in (source, *headers)))


@cache
def _compiler() -> tuple[str, str]:
    """Path and version of the C++ compiler."""
    if platform.machine() != "x86_64":
        raise BuildError(f"the native operators are written for x86-64, this is {platform.machine()}")
    name = os.environ.get("CXX") or "g++"
    path = shutil.which(name)
    if path is None:
        raise BuildError(f"no C++ compiler ({name}); install g++, or use an image with the library built in")
    return path, _run([path, "-dumpfullversion", "-dumpversion"])


def _run(command: list[str]) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]} did not finish in {COMPILE_SECONDS} s") from None
    if result.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{result.stderr[-4000:]}")
    return result.stdout


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "bladellm" / "native"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
