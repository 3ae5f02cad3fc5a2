"""What ``blade_llm_fetch`` tells: how far it is while it downloads, and in the termination log how it ended."""

import msgspec


class FetchReport(msgspec.Struct, frozen=True, kw_only=True):
    """How bringing a model to a folder ended; at most 4,096 bytes as JSON."""

    model: str
    """What was asked for: a folder or a hub id."""
    ready: bool
    folder: str = ""
    """Where the model lies."""
    files: int = 0
    bytes: int = 0
    """Size of those files together."""
    message: str = ""
    """What went wrong and what to do, when not ready."""


class FetchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a download is; ``GET /internal/fetch`` of the container that downloads."""

    model: str
    """What was asked for: a folder or a hub id."""
    files: int = 0
    """Files of the model; 0 until the hub has told."""
    files_done: int = 0
    bytes: int = 0
    """Size of those files together."""
    bytes_done: int = 0
    bytes_per_second: int = 0
    """Over the last seconds; 0 when nothing arrives."""
