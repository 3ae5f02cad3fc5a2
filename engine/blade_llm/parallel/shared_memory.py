"""Ranks of one host that meet in shared memory: a collective of one token's states takes microseconds, of which
sockets take a hundred.

The process that starts the ranks makes the segment and passes its path; the last rank to join takes it off the file
system, so that nothing is left however the processes end. Who started them may keep it open, to abort the group when it
sees a rank die: the ranks cannot see that themselves.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from torch import Tensor

from blade_llm.kernels.collectives import MAX_RANKS, is_available
from blade_llm.parallel.group import RankLostError
from blade_llm.parallel.shares import share_of

MEMORY_FOLDER: Final = Path("/dev/shm")

__all__ = ["MAX_RANKS", "RankLostError", "SharedMemoryGroup", "abort_segment", "create_segment", "is_available"]


class SharedMemoryGroup:
    """Implements :class:`~blade_llm.parallel.group.RankGroup` for tensors on CPU.

    All methods but :meth:`abort` and :meth:`close` are called by one thread at a time.
    """

    def __init__(self, path: Path, rank: int, size: int, timeout: float = 60.0) -> None:
        """``path``: of :func:`create_segment`. ``timeout``: seconds that a collective waits for the other ranks.

        Does not wait for them. Raises OSError, or CollectiveError where the segment is none for this rank.
        """
        from blade_llm.kernels.collectives.native import NativeGroup

        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self._group = NativeGroup(file, rank, size, timeout)
        finally:
            os.close(file)
        self._rank, self._size = rank, size
        if self._group.completed:
            path.unlink(missing_ok=True)

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    @property
    def native(self) -> int | None:
        return self._group.address

    def all_reduce(self, x: Tensor) -> Tensor:
        return self._group.all_reduce(x)

    def all_gather(self, x: Tensor) -> Tensor:
        return self._group.all_gather(x)

    def all_to_all(self, x: Tensor) -> Tensor:
        return self._group.all_to_all(x, len(share_of(len(x), self._rank, self._size)))

    def least(self, value: int) -> int:
        return self._group.least(value)

    def abort(self, lost_rank: int) -> None:
        """Make collectives of all ranks raise RankLostError, those that wait too. From any thread."""
        self._group.abort(lost_rank)

    def close(self) -> None:
        """See the protocol. From any thread."""
        self._group.leave()


def create_segment(size: int, folder: Path | None = None) -> Path:
    """A file that ``size`` ranks can meet in, for this user alone; in memory where ``folder`` does not say otherwise.

    It takes 1.5 MiB a rank. Until all ranks have joined, to remove it is the caller's part. Raises OSError, where a
    container has too little shared memory, too.
    """
    from blade_llm.kernels.collectives import native

    file, name = tempfile.mkstemp(prefix="bladellm-ranks-", dir=folder or MEMORY_FOLDER)
    path = Path(name)
    try:
        native.create_segment(file, size)
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(file)
    return path


def abort_segment(segment: Path | int, lost_rank: int) -> None:
    """As :meth:`SharedMemoryGroup.abort`, from a process that is no rank.

    ``segment``: path, or descriptor, which serves when the path is gone, too. Raises OSError.
    """
    from blade_llm.kernels.collectives import native

    if isinstance(segment, int):
        native.abort_segment(segment, lost_rank)
        return
    file = os.open(segment, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        native.abort_segment(file, lost_rank)
    finally:
        os.close(file)
