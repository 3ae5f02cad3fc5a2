"""GGUF files in parts (``NAME-00001-of-00003.gguf``), as ``llama-gguf-split`` makes them, by their names."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

SUFFIX: Final = ".gguf"
_PART: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def _part(name: str) -> re.Match[str] | None:
    match = _PART.fullmatch(name)
    return match if match and 1 <= int(match["number"]) <= int(match["count"]) else None


def parts_of(name: str) -> list[str]:
    """All parts of the model that ``name`` is one of, the first one first; ``name`` alone for a file without parts."""
    match = _part(name)
    if match is None:
        return [name]
    return [f"{match['stem']}-{number:05d}-of-{match['count']}{SUFFIX}" for number in range(1, int(match["count"]) + 1)]


def models_among(names: Collection[str]) -> list[str]:
    """One name for each model of ``names``: of one in parts the first part that is there."""
    found: dict[str, str] = {}
    for name in sorted(names):
        if name.endswith(SUFFIX):
            found.setdefault(parts_of(name)[0], name)
    return sorted(found.values())


def stem_of(name: str) -> str:
    """The name without its ending and the number of its part."""
    match = _part(name)
    return match["stem"] if match else name.removesuffix(SUFFIX)
