"""Files that are either the old or the new version, never half of one: write aside, then rename."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from blade_operator.cluster.local.errors import LocalError

_ASIDE = ".tmp-"


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644, durable: bool = True) -> None:
    """Replace ``path``; with ``durable`` the content is on disk before the name points at it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{_ASIDE}{os.getpid()}-{path.name}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """``write_atomic`` for a JSON value."""
    write_atomic(path, json.dumps(value, indent=1).encode() + b"\n", durable=durable)


def read_json(path: Path) -> Any:
    """The JSON value in ``path``.

    Raises:
        FileNotFoundError: there is none.
        LocalError: it is not JSON; only a hand can have done that.
    """
    text = path.read_bytes()
    try:
        return json.loads(text)
    except ValueError as error:
        raise LocalError(f"{path} is damaged ({error}): remove the file and start again") from error


def is_aside(path: Path) -> bool:
    """Whether a killed writer left this file behind."""
    return path.name.startswith(_ASIDE)
