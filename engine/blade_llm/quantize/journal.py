"""What of a quantised checkpoint is on the disk for sure: a line for each tensor that is, so that a run that was killed
goes on where it was."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from blade_llm.weights.output_folder import write_whole

JOURNAL_NAME: Final = ".blade_quantize.journal"


class Head(msgspec.Struct, frozen=True):
    """The first line."""

    fingerprint: str
    """Of the source and of what is to be made of it."""


class Done(msgspec.Struct, frozen=True):
    """A tensor of the source that is quantised or copied."""

    tensor: str
    seconds: float
    error: float | None = None
    """As of :class:`~blade_llm.quantize.compress.Compressed`; None: copied."""
    output_error: float | None = None
    """As there."""
    notes: tuple[str, ...] = ()
    """As there."""
    changed: bool = False
    """Not quantised, and scales went into it all the same."""


def read_journal(path: Path) -> tuple[str | None, dict[str, Done]]:
    """The fingerprint, and what is done by its name. None for no journal, or one that was killed with its first line
    or whose first line is damaged.

    A line that is not whole is the last: what it would say is not known to be on the disk.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return None, {}
    try:
        fingerprint = msgspec.json.decode(lines[0], type=Head).fingerprint
    except ValueError:  # of msgspec, or bytes that are not UTF-8
        return None, {}
    done: dict[str, Done] = {}
    for line in lines[1:-1]:
        try:
            entry = msgspec.json.decode(line, type=Done)
        except ValueError:
            break
        done[entry.tensor] = entry
    return fingerprint, done


class Journal:
    """The journal of a run, written anew with what earlier ones have ``done``. Raises ``OSError``."""

    def __init__(self, path: Path, fingerprint: str, done: Iterable[Done]) -> None:
        write_whole(path, _lines(Head(fingerprint), *done))
        self._stream = path.open("ab")

    def append(self, entries: Iterable[Done]) -> None:
        """Note ``entries``, whose bytes must be on the disk."""
        self._stream.write(_lines(*entries))
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stream.close()


def _lines(*entries: msgspec.Struct) -> bytes:
    return b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
