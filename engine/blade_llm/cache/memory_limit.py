"""The memory limit of this process, by the machine and by its cgroup."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Bytes this process may use: the least of the machine's memory and its cgroup's limits (v2 and v1, with parents).

    ``root`` is where ``/proc`` and ``/sys`` are found (tests put their own there).
    """
    of_cgroups = [limit for folder, names in _cgroups(root) for limit in _numbers(folder / names[0])]
    return min([_mem_info(root, "MemTotal"), *of_cgroups])


def memory_left_bytes(root: Path = Path("/")) -> int:
    """Bytes this process may still take: the least of what the machine has available and what its cgroups' limits
    leave, with files that are only cached counted as free."""
    left = [_mem_info(root, "MemAvailable")]
    for folder, (limit, usage) in _cgroups(root):
        for bound, used in zip(_numbers(folder / limit), _numbers(folder / usage), strict=False):
            left.append(max(0, bound - max(0, used - _cached_files(folder / "memory.stat"))))
    return min(left)


def _mem_info(root: Path, name: str) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/meminfo has no {name}; give --kv_cache_bytes")


def _cgroups(root: Path) -> Iterator[tuple[Path, tuple[str, str]]]:
    """Folders of this process's cgroups and of their parents, with the names of the files of limit and usage."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names, base = ("memory.max", "memory.current"), root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            names, base = ("memory.limit_in_bytes", "memory.usage_in_bytes"), root / "sys/fs/cgroup/memory"
        else:
            continue
        for folder in _upwards(base, path):
            yield folder, names


def _upwards(base: Path, path: str) -> list[Path]:
    """A cgroup's folder and its parents'. Inside a container ``path`` can be the host's view, which does not exist
    there: the root then holds our limit."""
    folder = base / path.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(base))]


def _numbers(file: Path) -> list[int]:
    """The number in a file, if there is one. ``max``, and a huge one in v1, mean no limit: callers take the least."""
    text = _read(file).strip()
    return [int(text)] if text.isdigit() else []


def _cached_files(stat: Path) -> int:
    """Bytes of files that the kernel drops when memory is short."""
    pairs = (line.split() for line in _read(stat).splitlines())
    return next((int(size) for name, size in pairs if name == "inactive_file"), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
