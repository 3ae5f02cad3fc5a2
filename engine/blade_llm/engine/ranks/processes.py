"""The processes of ranks 1 .. n-1: rank 0 starts those of its machine, sends to all, notices one that exits or
hangs, and leaves none behind.

Steps go out on one XPUB socket: one send reaches all ranks, on this machine through a unix socket, on others through
TCP. A rank's ready message comes back on the same connection, behind its subscription, so that a rank that is ready
misses nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq

from blade_llm.config import EngineConfig
from blade_llm.engine.messages import EngineFailure
from blade_llm.engine.nodes.leader import Leader
from blade_llm.engine.ranks.child import RankChild
from blade_llm.engine.ranks.hangs import HangWatch
from blade_llm.engine.ranks.lost import LostRank, RankFailedError, rank_failed
from blade_llm.engine.ranks.messages import RankReady, RankStart
from blade_llm.engine.ranks.monitor import CAUSE_SECONDS, NamingTheRank, OnLost, RankMonitor
from blade_llm.engine.ranks.ready import ReadyRanks
from blade_llm.engine.version import package_version
from blade_llm.parallel.session_key import listen_with, new_key

BUILD_RANK: Final = "blade_llm.engine.build:build_rank"
READY_SECONDS: Final = 3600.0
"""A rank that has not loaded its model after so long does not become ready: large models on cold disks take minutes."""
_STOP_SECONDS: Final = 3.0
_REMOTE_CAUSE_SECONDS: Final = 3.5
"""How long the cause of a loss is waited for among machines: a little longer than one of them may be silent."""
_MOST_WAITING: Final = 20_000
"""Messages that a rank of another machine has not taken yet; a rank that computes is never more than some behind."""
_SUBSCRIPTIONS: Final = (0, 1)
"""First bytes of what XPUB receives that is no rank's message."""


class RankProcesses:
    """The processes of ranks 1 .. ``size - 1``, of which other machines start their own. One thread at a time uses it.

    Garbage collection and interpreter exit end them, too, and so does the end of this process, however it comes.
    """

    def __init__(
        self,
        size: int,
        *,
        build: str = BUILD_RANK,
        log_level: str = "INFO",
        socket_dir: Path | None = None,
        local: int | None = None,
        leader: Leader | None = None,
    ) -> None:
        """Spawn the processes, which import what they need until :meth:`start`.

        ``size``: ranks, rank 0 included, at least 2. ``build``: ``module:function`` from a
        :class:`~blade_llm.engine.ranks.messages.RankStart` to a runner. ``socket_dir``: where the private folder is
        made, the system's temporary folder by default. ``local``: ranks of this machine, all by default. ``leader``:
        the link to the machines of the others, closed with the processes. Raises ``OSError``.
        """
        assert size >= 2, "one rank needs no further processes"
        self._size, self._build, self._log_level = size, build, log_level
        self._version = package_version()
        self._monitor = RankMonitor(CAUSE_SECONDS if leader is None else _REMOTE_CAUSE_SECONDS)
        self._leader = leader
        self.session_key, self.plans_port = "", 0
        """What the ranks of other machines need to receive steps: the socket's key, and its TCP port."""
        self._folder = Path(tempfile.mkdtemp(prefix="blade_llm-", dir=socket_dir))
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._socket.set_hwm(0)  # a slow rank costs memory, never a step
        self._socket.linger = 0
        self._address = f"ipc://{self._folder / 'ranks'}"
        if leader is not None:
            self._open_to_machines(leader)
        self._socket.bind(self._address)
        self._children: list[RankChild] = []
        self._serving = threading.Event()
        self._watch = watch = HangWatch(self._children, self._monitor.report, self._serving.is_set)
        self._finalizer = weakref.finalize(
            self,
            _end,
            os.getpid(),
            self._children,
            watch,
            self._monitor,
            self._socket,
            self._context,
            self._folder,
            leader,
        )
        try:
            for rank in range(1, size if local is None else local):
                self._children.append(RankChild(rank, build, self._monitor.report))
            for child in self._children:
                child.spawned()
            self._watch.start()
        except OSError:
            self.kill()
            raise

    def _open_to_machines(self, leader: Leader) -> None:
        """Let ranks of other machines in that know the key. A rank that takes nothing must not fill this memory."""
        self.session_key = new_key()
        listen_with(self._socket, self.session_key)
        self._socket.set_hwm(_MOST_WAITING)
        self._socket.setsockopt(zmq.XPUB_NODROP, 1)
        self._socket.ipv6 = ":" in leader.host
        host = f"[{leader.host}]" if ":" in leader.host else leader.host
        self.plans_port = self._socket.bind_to_random_port(f"tcp://{host}")
        leader.watch(self._lost_remote)

    def _lost_remote(self, rank: int, failure: EngineFailure, consequence: bool) -> None:
        self._monitor.report(LostRank(rank, failure, consequence))

    @property
    def pids(self) -> list[int]:
        """Process ids of this machine's, by rank from 1 on."""
        return [child.pid for child in self._children]

    def start(self, config: EngineConfig, *, group: str) -> None:
        """Let the processes load their parts of the model, on their own while rank 0 loads its own. To be called once.

        ``group``: where the ranks meet for their collectives.
        """
        for child in self._children:
            child.start(
                RankStart(
                    config=config,
                    rank=child.rank,
                    size=self._size,
                    plans=self._address,
                    group=group,
                    failure_pipe=child.failure_pipe,
                    build=self._build,
                    version=self._version,
                    log_level=self._log_level,
                    session_key=self.session_key,
                )
            )

    def wait_ready(self, timeout: float = READY_SECONDS, *, on_host: bool = True) -> None:
        """Return when all ranks are ready. To be called once, before the first :meth:`send`.

        ``on_host``: ranks compute on CPUs, where one of this machine that does nothing for seconds is lost.

        Raises:
            RankFailedError: a rank is lost, is not ready after ``timeout`` seconds, or does not belong to the others.
        """
        ready = ReadyRanks(self._size, self._version)
        decoder = msgspec.msgpack.Decoder(RankReady)
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor.descriptor, zmq.POLLIN)
        deadline = time.monotonic() + timeout
        while ready.missing:
            if (remaining := deadline - time.monotonic()) <= 0:
                raise rank_failed(ready.missing[0], f"is not ready after {timeout:.0f} s")
            events = dict(poller.poll(int(remaining * 1000) + 1))
            self._monitor.raise_if_lost()
            if self._socket in events:
                payload = self._socket.recv()
                if payload[0] not in _SUBSCRIPTIONS:
                    ready.add(decoder.decode(payload))
        self._remove_folder()
        if on_host:
            self._serving.set()
        if self._leader is not None:
            self._leader.serving()

    def send(self, payload: bytes, frames: Sequence[bytes] = ()) -> None:
        """Send a message (:mod:`blade_llm.engine.ranks.messages`) to all ranks, ``frames`` behind it. It never waits.

        Raises :class:`~blade_llm.engine.ranks.lost.RankFailedError`: a rank of another machine takes none any more.
        """
        try:
            self._socket.send_multipart([payload, *frames], zmq.NOBLOCK, copy=False)
        except zmq.Again:
            self._monitor.raise_if_lost()
            failure = EngineFailure(message=f"a rank has left {_MOST_WAITING} messages unread: it hangs")
            raise RankFailedError(failure) from None

    def receive(self) -> bytes | None:
        """What a rank has sent since it is ready; None: there is nothing now."""
        with contextlib.suppress(zmq.Again):
            while True:
                payload = self._socket.recv(zmq.NOBLOCK)
                if payload[0] not in _SUBSCRIPTIONS:
                    return payload
        return None

    def name_of(self, rank: int) -> str:
        """What messages call a rank: its number, and that of its machine where that is another one."""
        place = "" if self._leader is None else self._leader.place_of(rank)
        return f"{place}: rank {rank}" if place else f"rank {rank}"

    def watch(self, on_lost: OnLost) -> None:
        """Call ``on_lost(rank, failure)`` as soon as the first rank is lost, from another thread, or now if one is lost
        already: to abort the collectives that wait for it."""

        def lost(rank: int, failure: EngineFailure) -> None:
            if self._leader is not None:
                self._leader.end(failure.message)
            on_lost(rank, failure)

        self._monitor.watch(lost)

    @property
    def lost(self) -> LostRank | None:
        """The rank that is to blame as far as it is known; None: none is lost."""
        return self._monitor.lost

    @property
    def lost_descriptor(self) -> int:
        """Readable from the moment on at which a rank is lost, for poll. Nobody reads from it."""
        return self._monitor.descriptor

    def raise_if_lost(self) -> None:
        """Raise :class:`~blade_llm.engine.ranks.lost.RankFailedError` if a rank is lost."""
        self._monitor.raise_if_lost()

    def naming_the_rank(self) -> NamingTheRank:
        """A context in which a collective's error becomes the :class:`~blade_llm.engine.ranks.lost.RankFailedError` of
        the rank that is to blame. It may be entered again and again."""
        return NamingTheRank(self._monitor)

    def close(self) -> None:
        """Stop the processes (kill them after a while) and remove the folder. Idempotent."""
        if not self._finalizer.alive:
            return
        self._monitor.close()
        if self._leader is not None:
            self._leader.close()
        if not self._monitor.failed:  # else they may wait for each other
            for child in self._children:
                child.stop()
            deadline = time.monotonic() + _STOP_SECONDS
            for child in self._children:
                child.join(max(0.0, deadline - time.monotonic()))
        self._finalizer()

    def kill(self) -> None:
        """Kill the processes and remove the folder. Idempotent."""
        self._finalizer()

    def _remove_folder(self) -> None:
        """A connected socket no longer needs it: even SIGKILL then leaves nothing."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _end(
    owner: int,
    children: Sequence[RankChild],
    watch: HangWatch,
    monitor: RankMonitor,
    socket: zmq.Socket[bytes],
    context: zmq.Context[Any],
    folder: Path,
    leader: Leader | None,
) -> None:
    if os.getpid() != owner:  # a fork's exit is not the engine's
        return
    monitor.close()
    watch.close()
    if leader is not None:
        leader.close()
    for child in children:
        child.kill()
    for child in children:
        child.join()
        child.stop()
    socket.close()
    context.term()
    shutil.rmtree(folder, ignore_errors=True)
