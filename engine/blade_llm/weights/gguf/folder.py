"""A model folder for a GGUF file: ``config.json`` and ``tokenizer.json`` from its metadata, and a link to it."""

from __future__ import annotations

import glob
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from blade_llm.models.errors import ModelFilesError, UnsupportedModelError
from blade_llm.weights.gguf.config import config_of
from blade_llm.weights.gguf.header import check_header
from blade_llm.weights.gguf.index import INDEX_NAME, MISSING_PACKAGE, MODEL_NAME, TYPES, Entry
from blade_llm.weights.gguf.names import ROPE_FACTORS, hub_name, permuted_heads
from blade_llm.weights.gguf.tokenizer import tokenizer_of

_MAGIC: Final = b"GGUF"
_VERSION: Final = 1
"""Counts changes of what is written here."""


def gguf_folder(file: Path, cache: Path | None = None) -> Path:
    """The folder of ``file``, made when it is not there; ``cache``: where (the user's cache).

    Raises :class:`ModelFilesError` for a file that is no GGUF, is cut short or in parts, has tensors of a type that is
    not read, or an architecture or tokenizer that is not served, and without the ``gguf`` package.
    """
    try:
        cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bladellm" / "gguf"
    except RuntimeError:
        raise ModelFilesError(
            f"{file}: there is no home folder to keep its configuration in; set HOME or XDG_CACHE_HOME"
        ) from None
    try:
        status = file.stat()
        folder = cache / f"{file.stem}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{_VERSION}"
        if folder.is_dir() and (folder / MODEL_NAME).resolve() == file.resolve():
            return folder
        contents = _contents(file)
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=cache))
        try:
            for name, text in contents.items():
                (staging / name).write_text(text, encoding="utf-8")
            (staging / MODEL_NAME).symlink_to(file.resolve())
            for older in cache.glob(f"{glob.escape(file.stem)}-*"):
                # One of the new name is another process's, which was faster.
                if older != folder and (older / MODEL_NAME).resolve() == file.resolve():
                    shutil.rmtree(older, ignore_errors=True)
            staging.rename(folder)
        except OSError:
            shutil.rmtree(staging, ignore_errors=True)
            if not folder.is_dir():  # else another process was faster
                raise
    except OSError as error:
        raise ModelFilesError(f"{error.filename or file}: {error.strerror}") from error
    return folder


def _contents(file: Path) -> dict[str, str]:
    """The text files of the folder by name."""
    reader = _reader(file)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    if metadata.get("split.count") not in (None, 0, 1):
        raise UnsupportedModelError(
            f"{file} is one of {metadata['split.count']} parts; merge them (llama-gguf-split --merge)"
        )
    shapes = {tensor.name: tuple(int(extent) for extent in reversed(tensor.shape)) for tensor in reader.tensors}
    factors = next((np.array(tensor.data) for tensor in reader.tensors if tensor.name == ROPE_FACTORS), None)
    try:
        config = config_of(metadata, shapes, factors)
        tokenizer, tokenizer_config = tokenizer_of(metadata)
    except ModelFilesError as error:
        raise type(error)(f"{file}: {error}") from None
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise ModelFilesError(f"{file}: metadata of another kind than expected ({error}); download it again") from None
    entries = {}
    for tensor in reader.tensors:
        if tensor.name == ROPE_FACTORS:
            continue  # part of the configuration
        if (name := hub_name(tensor.name)) is None:
            raise UnsupportedModelError(
                f"{file}: tensor {tensor.name!r} is not known of architecture {config['model_type']!r}, and without "
                "it outputs would be wrong; take a file of the model's own architecture"
            )
        kind = str(tensor.tensor_type.name)
        if kind not in TYPES:
            raise UnsupportedModelError(
                f"{file}: tensor {tensor.name!r} is of type {kind}, which is not read; take a file of "
                "F16, Q8_0 or Q4_K_M"
            )
        heads = permuted_heads(
            str(config["model_type"]), name, config["num_attention_heads"], config["num_key_value_heads"]
        )
        entries[name] = Entry(shapes[tensor.name], kind, int(tensor.data_offset), int(tensor.n_bytes), heads)
    return {
        "config.json": json.dumps(config, indent=1),
        "tokenizer.json": tokenizer.to_str(),
        "tokenizer_config.json": json.dumps(tokenizer_config),
        INDEX_NAME: msgspec.json.encode(entries).decode(),
    }


def _reader(file: Path) -> Any:
    with file.open("rb") as stream:
        start = stream.read(8)
    if start.startswith(b"version "):
        raise ModelFilesError(f"{file} is a Git LFS pointer, not the weights; run `git lfs pull` in its folder")
    if start[:4] != _MAGIC:
        raise ModelFilesError(f"{file} is not a GGUF file (it begins with {start[:4]!r}); download it again")
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ModelFilesError(f"{file}: {MISSING_PACKAGE}") from None
    try:
        check_header(file)
        return GGUFReader(file)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeDecodeError, MemoryError) as error:
        raise ModelFilesError(
            f"{file} is truncated, corrupt, or of a type that is not known: {type(error).__name__}: {error}; "
            "download it again, or take a file of F16, Q8_0 or Q4_K_M"
        ) from None
