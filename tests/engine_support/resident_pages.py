"""How much of a mapped file is in this process's memory."""

from __future__ import annotations

from pathlib import Path


def resident(file: Path) -> int:
    """Bytes of the mappings of ``file`` that are in this process's memory."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if "-" in first:
            ours = line.endswith(f" {file.resolve()}")
        elif ours and first == "Rss:":
            total += int(line.split()[1]) * 1024
    return total
