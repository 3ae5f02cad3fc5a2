"""What else a model folder holds, and whether there is space for it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from blade_llm.models.errors import ModelFilesError
from blade_llm.weights.split.manifest import SPLIT_NAME

POOLING: Final = "*Pooling/config.json"
"""How a model for embeddings pools: the only thing below the folder itself that matters here."""
_WEIGHTS: Final = re.compile(r".*\.(?:safetensors|bin|gguf|pth|pt|ckpt|h5|msgpack|onnx)(?:\.index\.json|\.json)?|\..*")
"""Files with weights, their indices, and hidden ones."""


def side_files(folder: Path) -> list[Path]:
    """Configuration, tokenizer, templates: all files of a model folder that hold no weights, sorted."""
    found = [file for file in (*folder.iterdir(), *folder.glob(POOLING)) if file.is_file()]
    return sorted(file for file in found if not _WEIGHTS.fullmatch(file.name) and file.name != SPLIT_NAME)


def copy_side_files(folder: Path, target: Path) -> None:
    """Copy them; what ``target`` has of them is overwritten. Raises ``OSError``."""
    for file in side_files(folder):
        copy = target / file.relative_to(folder)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, copy)


def require_space(folder: Path, nbytes: int, files: Iterable[Path]) -> None:
    """Raise :class:`ModelFilesError` where the disk of ``folder`` has no space for ``nbytes`` and copies of ``files``;
    the message says how much is missing."""
    needed = nbytes + sum(file.stat().st_size for file in files)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelFilesError(
            f"{folder} needs {_size(needed)} and its disk has {_size(free)} free: {_size(needed - free)} are missing; "
            "free them, or give an --output_dir on another disk"
        )


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 10**9 else f"{nbytes / 1e6:.1f} MB"
