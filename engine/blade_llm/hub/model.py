"""The model that is downloaded, and the progress of its download."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a download."""

    done_bytes: int
    total_bytes: int
    file: str
    """The file that last received bytes."""
    files_done: int
    files_total: int


ProgressCallback = Callable[[Progress], None]
"""Called from download threads, one call at a time."""


Origin = Literal["hf", "modelscope", "s3", "oss", "oci"]
"""Who keeps a model: the Hugging Face hub, ModelScope, a bucket of S3 or of Alibaba Cloud OSS, an OCI registry."""


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model kept elsewhere."""

    repo_id: str
    """``ORG/NAME`` on a hub, ``BUCKET/PREFIX``, or ``REGISTRY/NAME``."""
    revision: str | None = None
    """Branch, tag or commit of a hub, tag or digest of a registry; ``None`` for the default one."""
    origin: Origin = "hf"
    gguf: str = ""
    """The GGUF file that is wanted of it, or the kind of its weights (``Q4_K_M``); empty for safetensors."""

    def __str__(self) -> str:
        scheme = "" if self.origin == "hf" else f"{self.origin}://"
        separator = "/" if self.gguf.endswith(".gguf") else ":"
        wanted = separator + self.gguf if self.gguf else ""
        return scheme + self.repo_id + wanted + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a model in one version."""

    name: str
    url: str
    size: int
    digest: str
    """Its name in the cache: sha256 (64 hex digits), git blob id (sha1, 40), md5 (32), or the entity tag of S3 for an
    upload in parts, with their size: ``32 digits-PARTS-BYTES``."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A model in one version."""

    version: str
    """40 or 64 hex digits."""
    files: list[RemoteFile]
    headers: dict[str, str]
    """Of every request for a file."""
    renew: Callable[[], None] | None = None
    """Puts fresh credentials into ``headers``."""
