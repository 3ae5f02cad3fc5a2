"""A hub repository as a complete folder in the hub library's cache.

The cache keeps the library's own layout (blobs named by checksum, snapshots of links), so that both find each other's
files. Every failure says what to do next, because the first start of a new service is where downloads fail.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from huggingface_hub import constants
from huggingface_hub.errors import HFValidationError

from blade_llm.hub.download import TransportError, download
from blade_llm.hub.failures import explain
from blade_llm.hub.locking import locked
from blade_llm.hub.model import HubModel, Listing, Progress, ProgressCallback, RemoteFile
from blade_llm.hub.origins import HEX, list_files
from blade_llm.hub.wanted import ADAPTER_CONFIG, ADAPTER_WEIGHTS, ELSEWHERE, TOKENIZER, gguf_files
from blade_llm.models.config import read_json
from blade_llm.models.errors import ModelFilesError
from blade_llm.weights.checkpoint import open_checkpoint
from blade_llm.weights.gguf.parts import SUFFIX

PARALLEL_FILES: Final = 4


def fetch_snapshot(model: HubModel, progress: ProgressCallback | None = None, cache: Path | None = None) -> Path:
    """The folder of ``model`` in the cache, downloaded when it is not complete there, or the GGUF file that is wanted
    of it; see :func:`~blade_llm.hub.resolve.resolve_model`.

    ``cache`` replaces the hub library's own cache folder. Raises :class:`ModelFilesError`.
    """
    cache = cache or Path(constants.HF_HUB_CACHE)
    folder = _folder_name(model)
    storage = cache / folder
    if snapshot := _cached_snapshot(storage, model):
        return snapshot
    if constants.HF_HUB_OFFLINE:
        raise ModelFilesError(
            f"model {model} is not complete in {cache} and HF_HUB_OFFLINE forbids downloads; unset it, or {ELSEWHERE}"
        )
    lock = cache / ".locks" / folder / "snapshot.lock"
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock):
            return _cached_snapshot(storage, model) or _download_snapshot(storage, model, progress)
    except (TransportError, HFValidationError, OSError) as error:
        raise explain(error, model, cache) from error


def cached_snapshot(model: HubModel, cache: Path | None = None) -> Path | None:
    """The folder of ``model`` in the cache, or the GGUF file that is wanted of it, where it is complete; else None."""
    return _cached_snapshot((cache or Path(constants.HF_HUB_CACHE)) / _folder_name(model), model)


def _folder_name(model: HubModel) -> str:
    """The library's own name for a model of the hub; for others with a digest, as their ids hold more characters."""
    name = re.sub("[^A-Za-z0-9._-]", "--", model.repo_id)
    if model.origin == "hf":
        return f"models--{name}"
    return f"{model.origin}--{name}--{hashlib.sha256(model.repo_id.encode()).hexdigest()[:12]}"


def _cached_snapshot(storage: Path, model: HubModel) -> Path | None:
    """The snapshot of ``model`` in the cache when everything the engine needs is there, else ``None``."""
    revision = _reference(model)
    commit = revision
    if not HEX.fullmatch(revision):
        try:
            commit = (storage / "refs" / revision).read_text(encoding="utf-8").strip()
        except OSError:
            return None
    snapshot = storage / "snapshots" / commit
    if model.gguf:
        there = [str(path.relative_to(snapshot)) for path in snapshot.rglob(f"*{SUFFIX}") if path.is_file()]
        try:
            return snapshot / gguf_files(there, model)[0]
        except ModelFilesError:
            return None
    names = {path.name for path in snapshot.glob("*") if path.is_file()}
    if ADAPTER_CONFIG in names and "config.json" not in names:
        return snapshot if names & set(ADAPTER_WEIGHTS) else None
    if "config.json" not in names:
        return None
    try:
        if not any(map(TOKENIZER.fullmatch, names)) and not _is_draft_head(snapshot):
            return None
        open_checkpoint(snapshot)
    except ModelFilesError:
        return None
    return snapshot


def _is_draft_head(snapshot: Path) -> bool:
    """Whether it is an EAGLE-3 head, which is complete without a tokenizer: it reads the tokens of its model."""
    config = read_json(snapshot, "config.json")
    return "draft_vocab_size" in config or "eagle" in str(config.get("architectures")).lower()


def _download_snapshot(storage: Path, model: HubModel, progress: ProgressCallback | None) -> Path:
    listing = list_files(model)
    commit, files = listing.version, listing.files
    blobs, snapshot = storage / "blobs", storage / "snapshots" / commit
    blobs.mkdir(parents=True, exist_ok=True)
    # Equal contents are one blob.
    unique = {file.digest: file for file in files}.values()
    missing = [file for file in unique if not _has_size(blobs / file.digest, file.size)]
    _require_space(blobs, sum(file.size for file in missing))
    size = sum(file.size for file in unique)
    there = Progress(size - sum(file.size for file in missing), size, "", len(unique) - len(missing), len(unique))
    _download_all(missing, listing, blobs, there, progress)
    # The snapshot appears only now, its configuration last: one that exists is complete.
    snapshot.mkdir(parents=True, exist_ok=True)
    for file in sorted(files, key=lambda file: file.name in ("config.json", ADAPTER_CONFIG)):
        _link(blobs / file.digest, snapshot / file.name)
    reference = storage / "refs" / _reference(model)
    if reference.name != commit:
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit, encoding="utf-8")
    return snapshot / gguf_files([file.name for file in files], model)[0] if model.gguf else snapshot


def _reference(model: HubModel) -> str:
    """The name under which the version is noted that ``model`` stood for when it was downloaded."""
    return (model.revision or constants.DEFAULT_REVISION).replace(":", "-")


def _download_all(
    files: list[RemoteFile], listing: Listing, blobs: Path, there: Progress, progress: ProgressCallback | None
) -> None:
    """Several files at a time; the first failure (or Ctrl-C) stops the others, and their partial files stay.

    ``there`` is how far the whole model is without ``files``.
    """
    done, files_done = there.done_bytes, there.files_done
    stop, lock = threading.Event(), threading.Lock()

    def fetch(file: RemoteFile) -> None:
        nonlocal files_done

        def on_bytes(count: int) -> None:
            nonlocal done
            with lock:
                done += count
                if progress:
                    progress(Progress(done, there.total_bytes, file.name, files_done, there.files_total))

        try:
            download(
                file, blobs / file.digest, headers=listing.headers, stop=stop, on_bytes=on_bytes, renew=listing.renew
            )
        except BaseException:
            stop.set()
            raise
        with lock:
            files_done += 1
            if progress:
                progress(Progress(done, there.total_bytes, file.name, files_done, there.files_total))

    with ThreadPoolExecutor(PARALLEL_FILES, thread_name_prefix="download") as pool:
        # Large files first, so that no single one is left over at the end.
        futures = [pool.submit(fetch, file) for file in sorted(files, key=lambda file: -file.size)]
        try:
            errors = [error for future in futures if (error := future.exception()) is not None]
        except BaseException:
            stop.set()
            raise
    causes = [error for error in errors if not isinstance(error, InterruptedError)]
    if causes:
        raise causes[0]


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ModelFilesError(
            f"the model needs {needed} bytes in {folder}, {free} are free; free some, or set HF_HOME to a larger disk"
        )


def _link(blob: Path, pointer: Path) -> None:
    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.unlink(missing_ok=True)
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except OSError:  # a file system without symbolic links: the snapshot then holds the file itself
        shutil.copyfile(blob, pointer)
