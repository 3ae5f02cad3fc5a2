"""Autotuning results of this machine that later starts need not measure again, in
``$XDG_CACHE_HOME/bladellm/machine.json``.

They hold for one processor, number of cores and version of torch; elsewhere (a home on several machines) the file
begins anew. A file that cannot be read or written only means measuring again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import torch


def cached_measurement(name: str, measure: Callable[[], float], cpuinfo: Path = Path("/proc/cpuinfo")) -> float:
    """The number stored under ``name``, else what ``measure`` returns, stored."""
    path = cache_file()
    machine = _machine(cpuinfo)
    values = _read(path, machine)
    if name not in values:
        values[name] = measure()
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f"{path.name}.{os.getpid()}")
            temporary.write_text(json.dumps({"machine": machine, "values": values}, indent=1), encoding="utf-8")
            temporary.replace(path)
    return values[name]


def cache_file() -> Path:
    """The file of the measurements."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bladellm" / "machine.json"


def _machine(cpuinfo: Path) -> str:
    """Tells processors, their number and the library apart."""
    wanted = ("model name", "flags", "Features", "CPU part")
    try:
        lines = {line for line in cpuinfo.read_text(encoding="utf-8").splitlines() if line.startswith(wanted)}
    except OSError:
        lines = set()
    text = "\n".join([*sorted(lines), str(len(os.sched_getaffinity(0))), str(torch.__version__)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(path: Path, machine: str) -> dict[str, float]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["machine"] == machine:
            return {str(name): float(value) for name, value in content["values"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return {}
