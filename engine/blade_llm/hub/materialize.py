"""A model as an ordinary folder at a given place, there either whole or not at all.

Used by ``blade_llm_fetch`` to fill a volume that several pods mount: two at once do not clash, a second run finds the
work done, and a run that was killed leaves nothing that looks like a model.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Final

from blade_llm.hub.locking import locked
from blade_llm.hub.model import HubModel, ProgressCallback
from blade_llm.hub.resolve import as_folder, parse_model
from blade_llm.hub.wanted import RANK_FILE
from blade_llm.models.config import read_json
from blade_llm.models.errors import ModelFilesError
from blade_llm.weights.checkpoint import open_checkpoint
from blade_llm.weights.split.manifest import is_split

POOLING: Final = "*Pooling/config.json"
"""How a model for embeddings pools."""
MARKER: Final = ".blade_model.json"
"""Names the model a folder was made from, so that one is never taken for another."""


def materialize(model: str, output_dir: Path, *, progress: ProgressCallback | None = None) -> Path:
    """Make ``output_dir`` the folder of ``model`` (a folder or hub id) and return it, at once when it already is.

    A hub model is downloaded beside ``output_dir``, so that an interrupted download continues on the same volume,
    unless ``HF_HOME`` or ``HF_HUB_CACHE`` names a cache. Raises :class:`ModelFilesError`.
    """
    source = parse_model(model)
    if isinstance(source, Path) and source.is_file():
        raise ModelFilesError(f"{source} is one file; copy it, and give its path as --model")
    output_dir = output_dir.expanduser().absolute()
    name = str(source.absolute() if isinstance(source, Path) else source)
    try:
        output_dir.parent.mkdir(parents=True, exist_ok=True)
        with locked(output_dir.parent / f".{output_dir.name}.lock"):
            if _holds(output_dir, name):
                return output_dir
            if isinstance(source, Path):
                _check_folder(source)
                _place(source, output_dir, name, link=False)
            else:
                _place_from_hub(source, output_dir, name, progress)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ModelFilesError(f"no space left for {output_dir}; enlarge the volume or free some") from error
        raise ModelFilesError(f"cannot write {output_dir}: {error}; give a folder inside a writable volume") from error
    return output_dir


def model_files(folder: Path) -> list[Path]:
    """The files of a model's folder: those in it, how it pools, and in one that was split ahead those of all ranks."""
    found = [*folder.iterdir(), *folder.glob(POOLING)]
    if is_split(folder):
        found += [file for file in folder.glob("rank_*/*") if RANK_FILE.fullmatch(file.relative_to(folder).as_posix())]
    return [file for file in found if file.is_file()]


def _place_from_hub(model: HubModel, output_dir: Path, name: str, progress: ProgressCallback | None) -> None:
    from blade_llm.hub.snapshot import fetch_snapshot

    own_cache = not ({"HF_HOME", "HF_HUB_CACHE"} & os.environ.keys())
    cache = output_dir.parent / f".{output_dir.name}.download" if own_cache else None
    _place(as_folder(fetch_snapshot(model, progress, cache)), output_dir, name, link=True)
    if cache is not None:
        shutil.rmtree(cache, ignore_errors=True)


def _holds(output_dir: Path, name: str) -> bool:
    """Whether ``output_dir`` is ``name`` already; a damaged one is deleted, to be made anew.

    Raises :class:`ModelFilesError` when it is something else.
    """
    if not output_dir.is_dir() or not any(output_dir.iterdir()):
        return False
    try:
        found = json.loads((output_dir / MARKER).read_text(encoding="utf-8"))["model"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ModelFilesError(
            f"{output_dir} is not empty and was not made by blade_llm_fetch; delete it or give another --output_dir"
        ) from None
    if found != name:
        raise ModelFilesError(f"{output_dir} holds {found}, not {name}; delete it or give another --output_dir")
    try:
        _check_folder(output_dir)
    except ModelFilesError:
        shutil.rmtree(output_dir)
        return False
    return True


def _check_folder(folder: Path) -> None:
    read_json(folder, "config.json")
    open_checkpoint(folder)


def _place(source: Path, output_dir: Path, name: str, *, link: bool) -> None:
    staging = output_dir.with_name(f".{output_dir.name}.staging")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    for file in model_files(source):
        if file.name == MARKER:
            continue
        target = staging / file.relative_to(source)
        target.parent.mkdir(exist_ok=True)
        # Only blobs of our cache are linked: a user's folder may change under our feet.
        if not (link and _hard_link(file.resolve(), target)):
            shutil.copyfile(file, target)
    (staging / MARKER).write_text(json.dumps({"model": name}), encoding="utf-8")
    staging.rename(output_dir)


def _hard_link(source: Path, target: Path) -> bool:
    try:
        target.hardlink_to(source)
    except OSError:
        return False
    return True
