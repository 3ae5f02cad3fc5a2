"""Ranks as real processes, each with one torch thread, or a GPU; they start within tenths of a second, from a process
that has imported torch already."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch

from blade_llm.parallel.build import join_group
from blade_llm.parallel.group import RankGroup

WAIT = 200.0 if torch.cuda.is_available() else 90.0
"""Seconds after which a test fails in which a rank does not end; on a GPU it may compile meanwhile."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["blade_llm.parallel.shared_memory", "blade_llm.parallel.torch_group"])

Work = Callable[..., Any]
"""What a rank does: called with its group and further arguments; the result is sent to the test."""


class Ranks:
    """Processes that each compute ``work``, a function of a module, as a rank of one group."""

    def __init__(
        self, address: str, size: int, work: Work, *args: Any, timeout: float = 60.0, device_type: str = "cpu"
    ) -> None:
        self._connections: list[Connection] = []
        self.processes: list[BaseProcess] = []
        self._joined = joined = _CONTEXT.Barrier(size)  # children find it only while it is here
        for rank in range(size):
            ours, theirs = _CONTEXT.Pipe(duplex=False)
            place = address, rank, size, device_type, timeout
            process = _CONTEXT.Process(target=_run, args=(theirs, joined, place, work, args), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self.processes.append(process)

    def kill(self, rank: int) -> None:
        """With SIGKILL."""
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self.processes[rank].join(WAIT)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(WAIT)

    def results(self, ranks: Sequence[int] | None = None) -> list[Any]:
        """Of ``ranks``, by default of all; what one raised is the result there."""
        wanted = range(len(self.processes)) if ranks is None else ranks
        found: dict[int, Any] = {}
        deadline = time.monotonic() + WAIT
        while len(found) < len(wanted):
            waiting = {self._connections[rank]: rank for rank in wanted if rank not in found}
            ready = wait(list(waiting), deadline - time.monotonic())
            assert ready, f"ranks {sorted(waiting.values())} do not end"
            for connection in ready:
                assert isinstance(connection, Connection)
                found[waiting[connection]] = connection.recv()
        return [found[rank] for rank in wanted]


@contextmanager
def running(
    address: str, size: int, work: Work, *args: Any, timeout: float = 60.0, device_type: str = "cpu"
) -> Iterator[Ranks]:
    """See :class:`Ranks`; they are killed at the end, and their segment removed where they did not all join."""
    ranks = Ranks(address, size, work, *args, timeout=timeout, device_type=device_type)
    try:
        yield ranks
    finally:
        ranks.stop()
        _segment(address).unlink(missing_ok=True)


def results_of(
    address: str, size: int, work: Work, *args: Any, timeout: float = 60.0, device_type: str = "cpu"
) -> list[Any]:
    """What the ranks return. Raises what the first of them raised."""
    with running(address, size, work, *args, timeout=timeout, device_type=device_type) as ranks:
        results = ranks.results()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def _segment(address: str) -> Path:
    kind, _, place = address.partition(":")
    return Path(place if kind == "shm" else "/dev/shm/bladellm-ranks-none")


def _run(
    connection: Connection, joined: Barrier, place: tuple[str, int, int, str, float], work: Work, args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    group: RankGroup | None = None
    try:
        if place[3] == "cuda":
            torch.cuda.set_device(place[1])
        group = join_group(*place)
        joined.wait(WAIT)  # before time-outs count that are shorter than some take to start
        assert not _segment(place[0]).is_file()
        result = work(group, *args)
    except Exception as error:
        joined.abort()
        result = error
    connection.send(result)
    if group is not None:
        group.close()
