"""A rank that is lost: what it left behind, and the errors that rank 0 raises then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from blade_llm.engine.child_process import ChildFailedError
from blade_llm.engine.messages import EngineFailure
from blade_llm.models.errors import ModelFilesError


class RankFailedError(ChildFailedError):
    """The ranks cannot go on, because of the one that the message names."""


class RankUserError(RankFailedError, ModelFilesError):
    """The same because of something the user can change (files, flags, memory); the message says what."""


@dataclass(frozen=True, slots=True)
class LostRank:
    """A rank whose process has exited by itself, or hangs."""

    rank: int
    failure: EngineFailure
    """Its message names the rank."""
    consequence: bool = False
    """It exited because a collective failed: perhaps another rank is lost."""

    @property
    def error(self) -> RankFailedError:
        """What rank 0 raises because of it."""
        return failed(self.failure)


class RankWatch(Protocol):
    """Notices the end of another rank's process; :class:`~blade_llm.engine.ranks.processes.RankProcesses` is one."""

    @property
    def lost_descriptor(self) -> int:
        """Readable from the moment on at which a rank is lost. Nobody reads from it."""

    @property
    def pids(self) -> Sequence[int]:
        """The processes of other ranks on this host."""

    def raise_if_lost(self) -> None:
        """Raise :class:`RankFailedError` if a rank is lost."""


def failed(failure: EngineFailure) -> RankFailedError:
    """The error for ``failure``, whose message names the rank."""
    return RankUserError(failure) if failure.user_error else RankFailedError(failure)


def rank_failed(rank: int, how: str) -> RankFailedError:
    """The error for rank ``rank`` that behaves wrongly."""
    return RankFailedError(EngineFailure(message=f"rank {rank} {how}"))


def named(rank: int, failure: EngineFailure) -> EngineFailure:
    """The failure that rank ``rank`` reported, with its name unless it begins with that."""
    if failure.message.startswith(f"rank {rank} "):
        return failure
    return msgspec.structs.replace(failure, message=f"rank {rank}: {failure.message}")
