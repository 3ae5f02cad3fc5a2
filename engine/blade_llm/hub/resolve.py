"""From what a user calls a model to a folder on this machine.

A folder stays where it is; an id of the Hugging Face hub becomes a snapshot in the hub library's cache, which is only
imported then: a server with a local model starts without it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from blade_llm.hub.model import HubModel, ProgressCallback
from blade_llm.models.errors import ModelFilesError

_HUB_ID: Final = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@(?P<revision>.+))?")
_GGUF: Final = ".gguf"
_REVISION: Final = re.compile(r"\w[\w./-]*")


def parse_model(model: str, revision: str | None = None) -> Path | HubModel:
    """What ``model`` means: a folder or ``*.gguf`` file that exists, or a hub id (``org/name``, ``hf://org/name@revision``).

    Raises :class:`ModelFilesError` for a path without a folder and for any other scheme. What looks like a path is
    never looked up on the hub.
    """
    if not model:
        raise ModelFilesError("the model is empty; give a folder or a hub id like ORG/NAME")
    scheme, separator, rest = model.partition("://")
    if separator and scheme not in ("hf", "file"):
        raise ModelFilesError(
            f"model {model!r}: unknown scheme {scheme!r}; use a folder, file://FOLDER or hf://ORG/NAME"
        )
    if not (separator and scheme == "hf"):
        path = Path(os.path.expanduser(rest if separator else model))
        if os.path.isdir(path):  # unlike Path.is_dir, also False for a name no system allows
            return _only_gguf(path) or path
        if os.path.exists(path):
            if path.suffix != _GGUF:
                raise ModelFilesError(f"model {model!r} is a file; give the folder it is in, or a *.gguf")
            return path
        if separator or "/" not in model or model.startswith(("/", ".", "~")):
            hint = f"; for a model of the hub write hf://{model}" if _HUB_ID.fullmatch(model) else ""
            raise ModelFilesError(
                f"model folder {path} does not exist; give a folder with config.json and *.safetensors{hint}"
            )
    match = _HUB_ID.fullmatch(rest if separator else model)
    if match is None:
        raise ModelFilesError(f"model {model!r} is neither a folder that exists nor a hub id like ORG/NAME")
    revision = revision or match["revision"]
    if revision is not None and (".." in revision or not _REVISION.fullmatch(revision)):
        raise ModelFilesError(f"model {model!r}: {revision!r} is not a branch, tag or commit")
    return HubModel(match["id"], revision)


def resolve_model(model: str, *, revision: str | None = None, progress: ProgressCallback | None = None) -> Path:
    """The folder of ``model`` (see :func:`parse_model`), downloaded first when it is a hub id that is not cached whole.

    ``HF_HOME``, ``HF_ENDPOINT``, ``HF_TOKEN`` and ``HF_HUB_OFFLINE`` mean what they mean to the hub library. A complete
    snapshot in the cache is used without a request to the hub. Raises :class:`ModelFilesError`.
    """
    found = parse_model(model, revision)
    if isinstance(found, Path):
        if found.suffix != _GGUF or not found.is_file():
            return found
        from blade_llm.weights.gguf.folder import gguf_folder

        return gguf_folder(found)
    from blade_llm.hub.snapshot import fetch_snapshot

    return fetch_snapshot(found, progress)


def _only_gguf(folder: Path) -> Path | None:
    """The GGUF file that is all there is of a model in ``folder``. Raises :class:`ModelFilesError` for several."""
    if (folder / "config.json").exists() or not (found := sorted(folder.glob(f"*{_GGUF}"))):
        return None
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ModelFilesError(f"{folder} holds several GGUF files ({names}); give one of them")
    return found[0]
