"""Where built things stay between runs: outside the tree, named by what they were made of, the oldest removed."""

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.images.errors import ImageError

KEPT = 2
"""Archives of each image that survive: this one and the one before, for going back and forth between two branches."""


def folder() -> Path:
    """``$XDG_CACHE_HOME/bladellm-e2e/images``, created when missing."""
    home = os.environ.get("XDG_CACHE_HOME") or ""
    base = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    path = base / "bladellm-e2e" / "images"
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of ``path``: two runs at once must not build the same thing twice."""
    with (path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def digest(root: Path, paths: Iterable[str], *others: str) -> str:
    """Sixteen hex digits that change with any file under ``paths`` (relative to ``root``) and with ``others``.

    Raises:
        ImageError: one of the paths does not exist.
    """
    total = hashlib.sha256(repr(others).encode())
    for name in paths:
        path = root / name
        if not path.exists():
            raise ImageError(f"{path} is missing; run this from a complete checkout")
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                content = file.read_bytes()
                total.update(f"{file.relative_to(root)}\0{len(content)}\0".encode() + content)
    return total.hexdigest()[:16]


def prune(path: Path, pattern: str, keep: int = KEPT) -> None:
    """Remove all but the ``keep`` most recently used files that match ``pattern``."""
    files = sorted(path.glob(pattern), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[keep:]:
        file.unlink()
