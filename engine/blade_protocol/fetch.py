"""Reports of ``blade_llm_fetch``: progress while it downloads, and the result in its termination message."""

import msgspec


class FetchReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a download; at most 4,096 bytes as JSON."""

    model: str
    """The model as named by the user: a folder or a hub id."""
    ready: bool
    folder: str = ""
    """Folder that holds the model."""
    files: int = 0
    """Number of its files, those of a draft model included."""
    bytes: int = 0
    """Total size of those files."""
    message: str = ""
    """What went wrong and what to do, when not ready."""


class FetchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a download; the response of ``GET /internal/fetch`` of the container that downloads."""

    model: str
    """The model as named by the user: a folder or a hub id."""
    files: int = 0
    """Number of the model's files; 0 until the hub has listed them. A draft model's are added once it is its turn."""
    files_done: int = 0
    bytes: int = 0
    """Total size of those files."""
    bytes_done: int = 0
    bytes_per_second: int = 0
    """Rate of the last seconds; 0 when nothing arrives."""
