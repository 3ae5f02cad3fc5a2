"""The memory limit of this process, by the machine and by its cgroup."""

from __future__ import annotations

from pathlib import Path


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Bytes this process may use: the least of the machine's memory and its cgroup's limits (v2 and v1, with parents).

    ``root`` is where ``/proc`` and ``/sys`` are found (tests put their own there).
    """
    limits = [_mem_total(root)]
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            limits += _limits_upwards(root / "sys/fs/cgroup", path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits_upwards(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
    return min(limits)


def _mem_total(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemTotal; give --kv_cache_bytes")


def _limits_upwards(base: Path, path: str, name: str) -> list[int]:
    """The limits in a cgroup and its parents; ``max`` and, in v1, a huge number mean none (the caller takes the least).

    Inside a container ``path`` can be the host's view, which does not exist there: the root then holds our limit.
    """
    folder = base / path.lstrip("/")
    folders = [folder, *(parent for parent in folder.parents if parent.is_relative_to(base))]
    texts = (_read(folder / name).strip() for folder in folders)
    return [int(text) for text in texts if text.isdigit()]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
