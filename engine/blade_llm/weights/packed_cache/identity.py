"""What packed weights are made of: the content of the model's files, the way they are packed, and the code that does.

Reading gigabytes only to know them again would take as long as a start may. So the checksum of a file is noted under
its inode, size and times, and a file of the hub's cache is named by its checksum already.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final

from blade_llm.kernels import native
from blade_llm.kernels.native.build import source_hash

_ROOT: Final = Path(__file__).parents[2]
_CODE: Final = ("kernels/linear", "layers", "models", "spec", "weights")
"""What decides which numbers are packed under which name."""
_BLOB: Final = re.compile(r"[0-9a-f]{64}")
_CHUNK: Final = 8 << 20


def stamp(files: Sequence[Path]) -> str:
    """Changes whenever one of ``files`` is replaced or written to; the same in each container that sees them."""
    return digest(*(_stamp(file) for file in files))


def packing(files: Sequence[Path], *settings: str) -> str:
    """Of the sizes of ``files``, ``settings``, the CPU's instruction set and the code."""
    sizes = (str(file.stat().st_size) for file in files)
    return digest(native.isa(), source_hash(), _code_hash(), *settings, *sizes)


def read_content(files: Sequence[Path], notes: Path) -> str:
    """The content of ``files``, read where it is not known, and noted in folder ``notes``. Raises ``OSError``."""
    with ThreadPoolExecutor(2, thread_name_prefix="checksum") as pool:
        return digest(*pool.map(lambda file: _noted(file, notes) or _read(file, notes), files))


def digest(*parts: str) -> str:
    """32 hex digits."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _stamp(file: Path) -> str:
    status = file.stat()
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _noted(file: Path, notes: Path) -> str | None:
    blob = file.resolve()
    if blob.parent.name == "blobs" and _BLOB.fullmatch(blob.name):
        return blob.name
    try:
        text = (notes / digest(_stamp(file))).read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    return text if _BLOB.fullmatch(text) else None


def _read(file: Path, notes: Path) -> str:
    before, content = _stamp(file), hashlib.sha256()
    with file.open("rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK):
            content.update(chunk)
    if _stamp(file) != before:
        raise OSError(f"{file} changed while it was read")
    with contextlib.suppress(OSError):  # a folder that cannot be written: it is read again next time
        temporary = notes / f"{digest(before)}.{os.getpid()}"
        temporary.write_text(content.hexdigest(), encoding="ascii")
        temporary.replace(notes / digest(before))
    return content.hexdigest()


@cache
def _code_hash() -> str:
    files = sorted(file for folder in _CODE for file in (_ROOT / folder).rglob("*.py"))
    return digest(*(file.read_text(encoding="utf-8") for file in files))
