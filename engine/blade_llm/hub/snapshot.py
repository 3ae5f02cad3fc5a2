"""A hub repository as a complete folder in the hub library's cache.

The cache keeps the library's own layout (blobs named by checksum, snapshots of links), so that both find each other's
files. Every failure says what to do next, because the first start of a new service is where downloads fail.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RevisionNotFoundError
from huggingface_hub.utils import build_hf_headers

from blade_llm.hub.download import MAX_TRIES, RemoteFile, TransportError, download, with_retries
from blade_llm.hub.locking import locked
from blade_llm.hub.model import HubModel, Progress, ProgressCallback
from blade_llm.models.errors import ModelFilesError
from blade_llm.weights.checkpoint import INDEX_NAME, PICKLED_INDEX_NAME, PICKLED_NAME, SINGLE_NAME, open_checkpoint

PARALLEL_FILES: Final = 4
_HEX: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_SIDE_FILES: Final = re.compile(r"[^/]+\.(?:json|jinja)|tokenizer\.model|[^/]*Pooling/config\.json")
"""Configuration, tokenizer, templates, and how a model for embeddings pools (``1_Pooling/config.json``)."""
_SHARD: Final = re.compile(r"model-\d+-of-\d+\.safetensors")
_PICKLED_SHARD: Final = re.compile(r"pytorch_model-\d+-of-\d+\.bin")
_ELSEWHERE: Final = "download the folder elsewhere and pass MODEL=FOLDER (or --model FOLDER)"


def fetch_snapshot(model: HubModel, progress: ProgressCallback | None = None, cache: Path | None = None) -> Path:
    """The folder of ``model`` in the cache, downloaded when it is not complete there; see
    :func:`~blade_llm.hub.resolve.resolve_model`.

    ``cache`` replaces the hub library's own cache folder. Raises :class:`ModelFilesError`.
    """
    cache = cache or Path(constants.HF_HUB_CACHE)
    folder = f"models--{model.repo_id.replace('/', '--')}"
    storage = cache / folder
    if snapshot := _cached_snapshot(storage, model):
        return snapshot
    if constants.HF_HUB_OFFLINE:
        raise ModelFilesError(
            f"model {model} is not complete in {cache} and HF_HUB_OFFLINE forbids downloads; unset it, or {_ELSEWHERE}"
        )
    lock = cache / ".locks" / folder / "snapshot.lock"
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock):
            return _cached_snapshot(storage, model) or _download_snapshot(storage, model, progress)
    except (TransportError, HFValidationError, OSError) as error:
        raise _explain(error, model, cache) from error


def _cached_snapshot(storage: Path, model: HubModel) -> Path | None:
    """The snapshot of ``model`` in the cache when everything the engine needs is there, else ``None``."""
    revision = model.revision or constants.DEFAULT_REVISION
    commit = revision
    if not _HEX.fullmatch(revision):
        try:
            commit = (storage / "refs" / revision).read_text(encoding="utf-8").strip()
        except OSError:
            return None
    snapshot = storage / "snapshots" / commit
    if not all((snapshot / name).is_file() for name in ("config.json", "tokenizer.json")):
        return None
    try:
        open_checkpoint(snapshot)
    except ModelFilesError:
        return None
    return snapshot


def _download_snapshot(storage: Path, model: HubModel, progress: ProgressCallback | None) -> Path:
    commit, files = _list_files(model)
    blobs, snapshot = storage / "blobs", storage / "snapshots" / commit
    blobs.mkdir(parents=True, exist_ok=True)
    # Equal contents are one blob.
    unique = {file.digest: file for file in files}.values()
    missing = [file for file in unique if not _has_size(blobs / file.digest, file.size)]
    _require_space(blobs, sum(file.size for file in missing))
    size = sum(file.size for file in unique)
    there = Progress(size - sum(file.size for file in missing), size, "", len(unique) - len(missing), len(unique))
    _download_all(missing, blobs, there, progress)
    # The snapshot appears only now, config.json last: one that exists is complete.
    snapshot.mkdir(parents=True, exist_ok=True)
    for file in sorted(files, key=lambda file: file.name == "config.json"):
        _link(blobs / file.digest, snapshot / file.name)
    reference = storage / "refs" / (model.revision or constants.DEFAULT_REVISION)
    if reference.name != commit:
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit, encoding="utf-8")
    return snapshot


def _list_files(model: HubModel) -> tuple[str, list[RemoteFile]]:
    """The commit ``model`` stands for now, and the files the engine needs of it."""
    info = with_retries(
        lambda: HfApi(endpoint=constants.ENDPOINT).model_info(
            model.repo_id, revision=model.revision, files_metadata=True, timeout=30
        ),
        threading.Event(),
    )
    siblings = {str(sibling.rfilename): sibling for sibling in info.siblings or ()}
    names = [name for name in siblings if _SIDE_FILES.fullmatch(name)] + _weights(list(siblings), model)
    if "config.json" not in names:
        raise ModelFilesError(f"model {model} has no config.json on the hub; it is not in the Hugging Face layout")
    files = []
    for name in sorted(names):
        sibling = siblings[name]
        digest = str(sibling.lfs.sha256 if sibling.lfs else sibling.blob_id)
        if sibling.size is None or not _HEX.fullmatch(digest) or not _HEX.fullmatch(str(info.sha)):
            raise ModelFilesError(
                f"the hub at {constants.ENDPOINT} does not tell size and checksum of {name} of model {model}; "
                f"set HF_ENDPOINT to a complete mirror, or {_ELSEWHERE}"
            )
        url = hf_hub_url(model.repo_id, name, revision=info.sha, endpoint=constants.ENDPOINT)
        files.append(RemoteFile(name=name, url=url, size=int(sibling.size), digest=digest))
    return str(info.sha), files


def _weights(names: list[str], model: HubModel) -> list[str]:
    """The weight files to take, by the loader's own preference; other copies of the weights are left out."""
    if SINGLE_NAME in names:
        return [SINGLE_NAME]
    shards = [name for name in names if _SHARD.fullmatch(name)]
    if INDEX_NAME in names and shards:
        return shards
    others = [n for n in names if n.endswith(".safetensors") and "/" not in n and not n.startswith("consolidated")]
    if others:
        return others
    if PICKLED_NAME in names:
        return [PICKLED_NAME]
    shards = [name for name in names if _PICKLED_SHARD.fullmatch(name)]
    if PICKLED_INDEX_NAME in names and shards:
        return shards
    raise ModelFilesError(
        f"model {model} has no *.safetensors and no {PICKLED_NAME} on the hub; use a repository that offers them"
    )


def _download_all(files: list[RemoteFile], blobs: Path, there: Progress, progress: ProgressCallback | None) -> None:
    """Several files at a time; the first failure (or Ctrl-C) stops the others, and their partial files stay.

    ``there`` is how far the whole model is without ``files``.
    """
    done, files_done = there.done_bytes, there.files_done
    stop, lock = threading.Event(), threading.Lock()
    headers = build_hf_headers()

    def fetch(file: RemoteFile) -> None:
        nonlocal files_done

        def on_bytes(count: int) -> None:
            nonlocal done
            with lock:
                done += count
                if progress:
                    progress(Progress(done, there.total_bytes, file.name, files_done, there.files_total))

        try:
            download(file, blobs / file.digest, headers=headers, stop=stop, on_bytes=on_bytes)
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
    pointer.parent.mkdir(exist_ok=True)
    pointer.unlink(missing_ok=True)
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except OSError:  # a file system without symbolic links: the snapshot then holds the file itself
        shutil.copyfile(blob, pointer)


def _explain(error: Exception, model: HubModel, cache: Path) -> ModelFilesError:
    """The same failure with what to do about it."""
    endpoint = constants.ENDPOINT
    if isinstance(error, HFValidationError):
        return ModelFilesError(f"model {model}: {error}")
    if isinstance(error, HfHubHTTPError):
        return ModelFilesError(_explain_status(error, model, error.response.status_code, endpoint))
    if isinstance(error, OSError):
        if error.errno == errno.ENOSPC:
            return ModelFilesError(
                f"no space left in {cache} for model {model}; free some, or set HF_HOME to a larger "
                "disk (what has arrived is kept, and the download continues there)"
            )
        return ModelFilesError(
            f"cannot write model {model} to {cache}: {error}; set HF_HOME to a folder that can be written"
        )
    return ModelFilesError(
        f"cannot reach the model hub {endpoint} for model {model} ({type(error).__name__}: {error}); "
        f"{_ELSEWHERE}, or set HF_ENDPOINT to a mirror that this machine reaches"
    )


def _explain_status(error: Exception, model: HubModel, status: int, endpoint: str) -> str:
    if isinstance(error, GatedRepoError) or status == 403:
        return f"model {model} is gated on {endpoint}: accept its terms there and set HF_TOKEN to that account's token"
    if isinstance(error, RevisionNotFoundError):
        return f"model {model.repo_id} has no revision {model.revision!r} on {endpoint}; check the part after '@'"
    if status == 401:
        return (
            f"model {model} does not exist on {endpoint} or is not public; check the name, "
            "and for a private or gated model set HF_TOKEN to a token that may read it"
        )
    if status == 404:
        return f"model {model} does not exist on {endpoint}; check the name (ORG/NAME), or pass a folder"
    if status == 429:
        return (
            f"the model hub {endpoint} limits requests (429) and still did after {MAX_TRIES} tries; wait some minutes, "
            f"set HF_TOKEN for a higher limit, or {_ELSEWHERE}"
        )
    return f"the model hub {endpoint} answered {status} for model {model}; try again later, or {_ELSEWHERE}"
