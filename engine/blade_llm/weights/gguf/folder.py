"""A model folder for a GGUF file: ``config.json`` and ``tokenizer.json`` from its metadata, and a link to it."""

from __future__ import annotations

import glob
import hashlib
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
from blade_llm.weights.gguf.index import INDEX_NAME, MISSING_PACKAGE, MODEL_NAME, TYPES, Entry, file_name
from blade_llm.weights.gguf.names import ROPE_FACTORS, hub_name, permuted_heads
from blade_llm.weights.gguf.parts import parts_of
from blade_llm.weights.gguf.tokenizer import tokenizer_of

_MAGIC: Final = b"GGUF"
_VERSION: Final = 2
"""Counts changes of what is written here."""


def gguf_folder(file: Path, cache: Path | None = None) -> Path:
    """The folder of ``file``, made when it is not there; ``cache``: where (the user's cache). Of a model in parts any
    part may be given; the others lie beside it.

    Raises :class:`ModelFilesError` for a file that is no GGUF or cut short, a part that is missing, tensors of a type
    that is not read, or an architecture or tokenizer that is not served, and without the ``gguf`` package.
    """
    try:
        cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bladellm" / "gguf"
    except RuntimeError:
        raise ModelFilesError(
            f"{file}: there is no home folder to keep its configuration in; set HOME or XDG_CACHE_HOME"
        ) from None
    parts = [file.with_name(name) for name in parts_of(file.name)]
    if missing := [part.name for part in parts if not part.is_file()]:
        raise ModelFilesError(
            f"{parts[0]}: {', '.join(missing)}, of {len(parts)} parts, is missing beside it; download all parts into "
            "one folder"
        )
    file = parts[0]
    try:
        folder = cache / f"{file.stem}-{_stamp(parts)}-{_VERSION}"
        if folder.is_dir() and (folder / MODEL_NAME).resolve() == file.resolve():
            return folder
        contents = _contents(parts)
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=cache))
        try:
            for name, text in contents.items():
                (staging / name).write_text(text, encoding="utf-8")
            for number, part in enumerate(parts):
                (staging / file_name(number)).symlink_to(part.resolve())
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


def _stamp(parts: list[Path]) -> str:
    """Changes with the content of any part."""
    stamps = [f"{each.st_ino}-{each.st_size}-{each.st_mtime_ns}" for each in (part.stat() for part in parts)]
    return stamps[0] if len(stamps) == 1 else hashlib.sha256(" ".join(stamps).encode()).hexdigest()[:32]


def _contents(parts: list[Path]) -> dict[str, str]:
    """The text files of the folder by name."""
    file, readers = parts[0], [_reader(part) for part in parts]
    metadata = {name: field.contents() for name, field in readers[0].fields.items()}
    _check_parts(parts, readers, metadata)
    every = [(part, number, tensor) for number, part in enumerate(parts) for tensor in readers[number].tensors]
    shapes = {tensor.name: tuple(int(extent) for extent in reversed(tensor.shape)) for _, _, tensor in every}
    factors = next((np.array(tensor.data) for _, _, tensor in every if tensor.name == ROPE_FACTORS), None)
    try:
        config = config_of(metadata, shapes, factors)
        tokenizer, tokenizer_config = tokenizer_of(metadata)
    except ModelFilesError as error:
        raise type(error)(f"{file}: {error}") from None
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise ModelFilesError(f"{file}: metadata of another kind than expected ({error}); download it again") from None
    entries = {}
    for part, number, tensor in every:
        if tensor.name == ROPE_FACTORS:
            continue  # part of the configuration
        if (name := hub_name(tensor.name)) is None:
            raise UnsupportedModelError(
                f"{part}: tensor {tensor.name!r} is not known of architecture {config['model_type']!r}, and without "
                "it outputs would be wrong; take a file of the model's own architecture"
            )
        kind = str(tensor.tensor_type.name)
        if kind not in TYPES:
            raise UnsupportedModelError(
                f"{part}: tensor {tensor.name!r} is of type {kind}, which is not read; take a file of "
                "F16, Q8_0 or Q4_K_M"
            )
        if name in entries:
            raise ModelFilesError(f"{part}: tensor {tensor.name!r} is in another part, too; download all parts again")
        heads = permuted_heads(
            str(config["model_type"]), name, config["num_attention_heads"], config["num_key_value_heads"]
        )
        entries[name] = Entry(
            shapes[tensor.name], kind, int(tensor.data_offset), int(tensor.n_bytes), heads, file_name(number)
        )
    return {
        "config.json": json.dumps(config, indent=1),
        "tokenizer.json": tokenizer.to_str(),
        "tokenizer_config.json": json.dumps(tokenizer_config),
        INDEX_NAME: msgspec.json.encode(entries).decode(),
    }


def _check_parts(parts: list[Path], readers: list[Any], metadata: dict[str, Any]) -> None:
    """Raises :class:`ModelFilesError` where the files are not what their names say."""
    count = int(metadata.get("split.count") or 1)
    if count != len(parts):
        raise ModelFilesError(
            f"{parts[0]} is one of {count} parts, by its name one of {len(parts)}; name them as they were published "
            "(NAME-00001-of-00002.gguf, ...), or merge them (llama-gguf-split --merge)"
        )
    for number, (part, reader) in enumerate(zip(parts, readers, strict=True)):
        if count == 1:
            return
        field = reader.fields.get("split.no")
        if field is None or int(field.contents()) != number:
            raise ModelFilesError(f"{part} is not part {number + 1} of {count} inside; download it again")
    total, found = metadata.get("split.tensors.count"), sum(len(reader.tensors) for reader in readers)
    if total is not None and int(total) != found:
        raise ModelFilesError(
            f"{parts[0]} and the other parts hold {found} tensors, not {total}: they are of different models; download "
            "all parts again"
        )


def _reader(file: Path) -> Any:
    with file.open("rb") as stream:
        start = stream.read(8)
    if start.startswith(b"version "):
        raise ModelFilesError(f"{file} is a Git LFS pointer, not the weights; run `git lfs pull` in its folder")
    if start[:4] != _MAGIC:
        raise ModelFilesError(f"{file} is not a GGUF file (it begins with {start[:4]!r}); download it again")
    try:
        from gguf import GGMLQuantizationType, GGUFReader
    except ImportError:
        raise ModelFilesError(f"{file}: {MISSING_PACKAGE}") from None
    try:
        known = {int(kind) for kind in GGMLQuantizationType}
        for name, number in check_header(file).items():
            if number not in known:
                raise UnsupportedModelError(
                    f"{file}: tensor {name!r} is of type {number}, which the gguf package does not know either; update "
                    "the package, or take a file of F16, Q8_0 or Q4_K_M"
                )
        return GGUFReader(file)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeDecodeError, MemoryError) as error:
        raise ModelFilesError(
            f"{file} is truncated or corrupt: {type(error).__name__}: {error}; download it again"
        ) from None
