"""From what a user calls a model to a folder on this machine.

A folder stays where it is; a model of a hub, a bucket or a registry becomes a snapshot in the hub library's cache. That
library is only imported then: a server with a local model starts without it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, Literal, get_args

from blade_llm.hub.model import HubModel, Origin, ProgressCallback
from blade_llm.models.errors import ModelFilesError
from blade_llm.weights.gguf.parts import models_among

_HUB_ID: Final = re.compile(
    r"(?P<id>[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:/(?P<file>(?:[\w.+-]+/)*[\w.+-]+\.gguf)|:(?P<kind>\w[\w.-]*))?"
    r"(?:@(?P<revision>.+))?"
)
_BUCKET: Final = re.compile(r"(?P<id>[a-z0-9][a-z0-9.-]+/[\w.=+-]+(?:/[\w.=+-]+)*)/?")
_REGISTRY: Final = re.compile(
    r"(?P<id>[\w.-]+(?::\d+)?/[a-z0-9._-]+(?:/[a-z0-9._-]+)*)(?::(?P<tag>[\w.-]+)|@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_GGUF: Final = ".gguf"
_REVISION: Final = re.compile(r"\w[\w./-]*")
_TAG: Final = re.compile(r"\w[\w.-]*|sha256:[0-9a-f]{64}")


def parse_model(model: str, revision: str | None = None) -> Path | HubModel:
    """What ``model`` means: a folder or ``*.gguf`` file that exists, or a hub id (``org/name``, ``hf://org/name@revision``;
    with a GGUF file of it: ``org/name:Q4_K_M``, ``org/name/file.gguf``).

    Raises :class:`ModelFilesError` for a path without a folder and for any other scheme. What looks like a path is
    never looked up on the hub.
    """
    if not model:
        raise ModelFilesError("the model is empty; give a folder or a hub id like ORG/NAME")
    scheme, separator, rest = model.partition("://")
    if separator and scheme not in ("file", *get_args(Origin)):
        raise ModelFilesError(
            f"model {model!r}: unknown scheme {scheme!r}; use a folder, file://FOLDER, hf://ORG/NAME, "
            "modelscope://ORG/NAME, s3://BUCKET/PREFIX, oss://BUCKET/PREFIX or oci://REGISTRY/NAME"
        )
    if separator and scheme in ("s3", "oss", "oci"):
        return _elsewhere(model, rest, scheme, revision)  # type: ignore[arg-type]
    if not separator or scheme == "file":
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
    if match is None or ".." in (match["file"] or "").split("/"):
        raise ModelFilesError(f"model {model!r} is neither a folder that exists nor a hub id like ORG/NAME")
    revision = revision or match["revision"]
    if revision is not None and (".." in revision or not _REVISION.fullmatch(revision)):
        raise ModelFilesError(f"model {model!r}: {revision!r} is not a branch, tag or commit")
    on_modelscope = scheme == "modelscope" or (not separator and os.environ.get("MODELSCOPE") == "1")
    return HubModel(
        match["id"], revision, "modelscope" if on_modelscope else "hf", match["file"] or match["kind"] or ""
    )


def _elsewhere(model: str, rest: str, scheme: Literal["s3", "oss", "oci"], revision: str | None) -> HubModel:
    """A model of a bucket or a registry."""
    match = (_REGISTRY if scheme == "oci" else _BUCKET).fullmatch(rest)
    if match is None or ".." in rest:
        form = "oci://REGISTRY/NAME[:TAG]" if scheme == "oci" else f"{scheme}://BUCKET/PREFIX"
        raise ModelFilesError(f"model {model!r} is not of the form {form}")
    if scheme != "oci" and revision is not None:
        raise ModelFilesError(f"model {model!r}: a bucket has no revisions; name another prefix")
    found = match.groupdict()
    revision = revision or found.get("tag") or found.get("digest")
    if revision is not None and (".." in revision or not _TAG.fullmatch(revision)):
        raise ModelFilesError(f"model {model!r}: {revision!r} is neither a tag nor a digest (sha256:...)")
    return HubModel(match["id"], revision, scheme)


def resolve_model(model: str, *, revision: str | None = None, progress: ProgressCallback | None = None) -> Path:
    """The folder of ``model`` (see :func:`parse_model`), downloaded first when it is a hub id that is not cached whole.

    ``HF_HOME``, ``HF_ENDPOINT``, ``HF_TOKEN`` and ``HF_HUB_OFFLINE`` mean what they mean to the hub library. A complete
    snapshot in the cache is used without a request to the hub. Raises :class:`ModelFilesError`.
    """
    found = parse_model(model, revision)
    if isinstance(found, Path):
        return as_folder(found)
    from blade_llm.hub.snapshot import fetch_snapshot

    return as_folder(fetch_snapshot(found, progress))


def as_folder(found: Path) -> Path:
    """A folder as it is, that made for a GGUF file."""
    if found.suffix != _GGUF or not found.is_file():
        return found
    from blade_llm.weights.gguf.folder import gguf_folder

    return gguf_folder(found)


def _only_gguf(folder: Path) -> Path | None:
    """The GGUF file that is all there is of a model in ``folder``. Raises :class:`ModelFilesError` for several."""
    if (folder / "config.json").exists() or not (found := models_among([file.name for file in folder.glob("*.gguf")])):
        return None
    if len(found) > 1:
        names = ", ".join(found)
        raise ModelFilesError(f"{folder} holds several GGUF files ({names}); give one of them")
    return folder / found[0]
