"""What else a model folder holds, and whether there is space for it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from blade_llm.models.errors import ModelFilesError
from blade_llm.weights.split.manifest import SPLIT_NAME

POOLING: Final = "*Pooling/config.json"
"""How a model for embeddings pools: the only thing below the folder itself that matters here."""
_LEFT: Final = re.compile(
    r".*\.(?:safetensors|bin|gguf|pth|pt|ckpt|h5|msgpack|ot|npz)(?:\.json)?|.*\.onnx.*|consolidated\..*"
    r"|.*\.index.*\.json"
    r"|.*\.(?:zip|7z|rar|tgz|tar(?:\.\w+)?)"
    r"|.*\.(?:tmp|part|incomplete)|adapter_config\.json|trainer_state\.json|events\.out\.tfevents.*|\..*"
)
"""Weights of any framework and their indices, archives, what is left of downloads, of adapters and of training, and
hidden files."""


def side_files(folder: Path) -> list[Path]:
    """Configuration, tokenizer, templates: what of a model folder belongs to the model and holds no weights,
    sorted."""
    found = [file for file in (*folder.iterdir(), *folder.glob(POOLING)) if file.is_file()]
    return sorted(file for file in found if not _LEFT.fullmatch(file.name) and file.name != SPLIT_NAME)


def copy_side_files(folder: Path, target: Path, without: Collection[str] = ()) -> None:
    """Copy them, but for those named in ``without``; what ``target`` has of them is overwritten. Raises ``OSError``."""
    for file in side_files(folder):
        if file.name in without:
            continue
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
