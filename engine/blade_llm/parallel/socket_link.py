"""Links between pipeline stages over ZeroMQ: a copy into a socket and one out of it, some ten microseconds for the
states of a decode and nothing beside the milliseconds of a stage's layers. On one host through Unix sockets.

What is in flight is bounded by the steps in flight, so queues have no limits, and no sender waits.
"""

from __future__ import annotations

import os
import time
from typing import Any, Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from blade_llm.parallel.group import CollectiveError, RankLostError
from blade_llm.parallel.session_key import connect_with, listen_with
from blade_llm.parallel.waiting import LONGEST_SLEEP

_RECONNECT_MS: Final = 20
"""Between two tries to reach a rank that does not listen yet."""
_INTRODUCTION_MS: Final = 5_000
"""A stage that refuses the one before it waits so long until the next has heard which stage it is, and refuses it."""


class SocketLink:
    """Implements :class:`~blade_llm.parallel.link.StageLink`."""

    def __init__(
        self, listen: str, following: str, stage: int, stages: int, timeout: float = 60.0, key: str = ""
    ) -> None:
        """Returns when the stage before is there.

        ``listen``: the ZeroMQ endpoint of this rank, ``following``: that of the next stage's, such as
        ``ipc:///dev/shm/folder/rank-1``. ``timeout``: seconds that :meth:`receive` waits. ``key``: the secret key
        (CURVE, in Z85) of all listening sockets; empty: nobody else reaches them. Raises :class:`RankLostError`
        where the stage before does not come in time, :class:`CollectiveError` where another one does, and
        ``zmq.ZMQError`` for an endpoint that cannot serve.
        """
        self._stage, self._stages, self._timeout = stage, stages, timeout
        self._lost = -1
        self._peer = -1
        """Descriptor of the connection that the stage before sends on; strangers have others."""
        self._aborted = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._context: zmq.Context[Any] = zmq.Context()
        self._from, self._to = self._context.socket(zmq.PULL), self._context.socket(zmq.PUSH)
        try:
            for socket in (self._from, self._to):
                socket.set_hwm(0)
                socket.linger = 0
                socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
            if key:
                listen_with(self._from, key)
                connect_with(self._to, key)
                self._from.ipv6 = True
            self._gone = self._from.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            self._from.bind(listen)
            self._poller = zmq.Poller()
            for source in (self._from, self._gone, self._aborted):
                self._poller.register(source, zmq.POLLIN)
            self._to.connect(following)
            self.send(memoryview(b"%d of %d" % (stage, stages)))
            self._require_before()
        except BaseException:
            self.close()
            raise

    @property
    def stage(self) -> int:
        return self._stage

    @property
    def stages(self) -> int:
        return self._stages

    def send(self, payload: memoryview) -> None:
        """See the protocol."""
        self._to.send(payload, copy=False)

    def receive(self, *, wait: bool = True) -> memoryview | None:
        """See the protocol."""
        if (payload := self._next()) is not None or not wait:
            return payload
        deadline = time.monotonic() + self._timeout
        while True:
            if self._lost >= 0:
                raise RankLostError(f"rank {self._lost} is lost")
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise RankLostError(f"stage {self._before} has sent nothing for {self._timeout:g} s")
            events = dict(self._poller.poll(int(min(remaining, LONGEST_SLEEP) * 1000) + 1))
            if (payload := self._next()) is not None:
                return payload
            if self._gone in events and self._has_gone():
                raise RankLostError(f"the rank of stage {self._before} is gone")

    def abort(self, lost_rank: int) -> None:
        """See the protocol. From any thread."""
        self._lost = lost_rank
        if self._aborted >= 0:
            os.eventfd_write(self._aborted, 1)

    def close(self) -> None:
        """See the protocol."""
        self._context.destroy()
        if self._aborted >= 0:
            os.close(self._aborted)
            self._aborted = -1

    @property
    def _before(self) -> int:
        return (self._stage - 1) % self._stages

    def _has_gone(self) -> bool:
        """Whether the stage before has closed its connection, and not a stranger."""
        while self._gone.poll(0):
            if recv_monitor_message(self._gone)["value"] == self._peer:
                return True
        return False

    def _next(self) -> memoryview | None:
        try:
            frame = self._from.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        if self._peer < 0:
            self._peer = int(frame.get(zmq.SRCFD))
        return frame.buffer

    def _require_before(self) -> None:
        """Take the first message, which says whose it is."""
        payload = self.receive()
        assert payload is not None
        if (said := bytes(payload)) != b"%d of %d" % (self._before, self._stages):
            self._to.linger = _INTRODUCTION_MS
            raise CollectiveError(f"stage {self._stage} of {self._stages} meets stage {said.decode(errors='replace')}")
