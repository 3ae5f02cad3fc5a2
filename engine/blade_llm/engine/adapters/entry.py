"""One adapter of an engine, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from blade_llm.engine.messages import RequestError
from blade_llm.scheduling.request import Request
from blade_protocol.adapters import AdapterState


class LoadedAdapter(Protocol):
    """An adapter's weights in host memory."""

    @property
    def digest(self) -> bytes: ...

    @property
    def rank(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class CheckedFiles:
    """The files of an adapter that were found, and checked as far as that goes without reading its weights."""

    folder: Path
    rank: int = 0
    """0: not checked."""


@dataclass(eq=False, slots=True)
class Adapter:
    """One adapter. It may lose its name to another one while requests with it still run."""

    name: str
    path: str
    """As it was given: a folder, or an id of a hub, bucket or registry."""
    pinned: bool = False
    by_path: bool = False
    """A request named its folder: it goes when host memory has no room for it any more."""
    state: AdapterState = "loading"
    reason: str = ""
    """Why its last load failed, or that of what was to replace it."""
    named: bool = True
    """False: unloaded or replaced. It goes with its last request."""
    folder: Path | None = None
    """Where its files are on this machine; None: not found yet."""
    number: int = 0
    """In host memory under this number; 0: it is not."""
    coming: int = 0
    """The number under which it is read, or was last."""
    digest: bytes = b""
    """Of what was loaded last."""
    rank: int = 0
    nbytes: int = 0
    files: Future[CheckedFiles] | None = None
    """They are looked for, downloaded or checked."""
    weights: Future[LoadedAdapter] | None = None
    """They are read."""
    queued: bool = False
    """It waits to be read."""
    register_only: bool = False
    """Its weights are read for its first request."""
    waiting: list[list[Request]] = field(default_factory=list)
    """Requests that wait for it, in order: the samples of one prompt together."""
    calls: list[Callable[[RequestError | None], None]] = field(default_factory=list)
    """Who is to hear that it is loaded, or why it is not."""
    replacement: Adapter | None = None
    """What takes its name once it is read."""

    @property
    def answers(self) -> bool:
        """Whether requests may use it, at once or when it is read."""
        return self.state in ("registered", "loaded")

    def reply(self, error: RequestError | None) -> None:
        """Answer the calls that wait for it."""
        calls, self.calls = self.calls, []
        for call in calls:
            call(error)
