"""The result ``blade_llm_fetch`` leaves in the termination log: the ModelCached condition of an LLMService."""

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
