"""The process of a rank other than rank 0: receives steps, computes its part of each, samples what all sample.

Started as ``python -m blade_llm.engine.ranks.worker BUILD`` by :mod:`blade_llm.engine.ranks.child` with a clean
interpreter. Its standard input brings one :class:`RankStart` and then stays open as the parent-death pipe. Between
steps it blocks in poll and uses no CPU, but that it wakes twice a second: one that does not hangs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
import zmq

from blade_llm.engine.adapters import LoadedAdapter
from blade_llm.engine.child_process import begin, failure_of, load_build, report_failure
from blade_llm.engine.ranks.adapter_reads import Place, RankAdapters
from blade_llm.engine.ranks.hangs import STACKS_SIGNAL
from blade_llm.engine.ranks.messages import (
    ForwardMessage,
    RankFailure,
    RankReady,
    RankStart,
    ReleaseCacheMessage,
    SamplingMessage,
    decode,
    masks_of,
    plan_with,
)
from blade_llm.engine.ranks.monitor import is_collective_error
from blade_llm.engine.ranks.ready import other_version
from blade_llm.engine.ranks.runner import LoadedRunner
from blade_llm.engine.start import freeze_gc_heap, log_to_stderr
from blade_llm.engine.version import package_version
from blade_llm.parallel.layout import RankLayout
from blade_llm.parallel.session_key import connect_with
from blade_llm.parallel.waiting import LONGEST_SLEEP
from blade_llm.scheduling.plan import PendingForward, Runner

_SUBSCRIBE_TO_ALL: Final = b"\x01"
_LONGEST_POLL_MS: Final = int(LONGEST_SLEEP * 1000)


class RankProcess:
    """Runs what ``socket`` brings until ``parent_pipe`` (a file descriptor) reaches end of file."""

    def __init__(
        self, runner: Runner, socket: zmq.Socket[bytes], parent_pipe: int, adapters: RankAdapters | None = None
    ) -> None:
        self._runner = runner
        self._socket = socket
        self._parent_pipe = parent_pipe
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(parent_pipe, zmq.POLLIN)
        self._adapters = adapters
        if adapters is not None:
            self._poller.register(adapters.descriptor, zmq.POLLIN)
        self._forward: PendingForward | None = None
        """The forward pass whose sampling is to come."""

    def run(self) -> None:
        """Return when the parent has exited; whatever the runner raises passes through."""
        while True:
            ready = dict(self._poller.poll(_LONGEST_POLL_MS))
            if self._parent_pipe in ready and not os.read(self._parent_pipe, 1):
                return
            if self._adapters is not None and self._adapters.descriptor in ready:
                for reply in self._adapters.take_replies():
                    self._socket.send(reply)
            with contextlib.suppress(zmq.Again):
                payload, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                self._handle(payload.bytes, frames)

    def _handle(self, payload: bytes, frames: Sequence[zmq.Frame]) -> None:
        message = decode(payload)
        if isinstance(message, ForwardMessage):
            self._forward = self._runner.launch_forward(plan_with(message, frames))
            return
        if isinstance(message, ReleaseCacheMessage):
            self._runner.release_cache()
            return
        if not isinstance(message, SamplingMessage):
            assert self._adapters is not None, "an adapter for a runner that serves none"
            self._adapters.handle(message)
            return
        forward, self._forward = self._forward, None
        assert forward is not None, "a sampling without its forward pass"
        self._runner.launch_sampling(forward, masks_of(message))  # rank 0 reads the tokens, which are the same


def connect(context: zmq.Context[Any], start: RankStart) -> zmq.Socket[bytes]:
    """A socket that receives every message rank 0 sends after it has received this rank's ready message."""
    socket: zmq.Socket[bytes] = context.socket(zmq.XSUB)
    socket.set_hwm(0)
    socket.linger = 0
    if start.session_key:
        connect_with(socket, start.session_key)
    socket.connect(start.plans)
    socket.send(_SUBSCRIBE_TO_ALL)
    socket.send(msgspec.msgpack.encode(RankReady(rank=start.rank, size=start.size, version=package_version())))
    return socket


def _serve(start: RankStart, parent_pipe: int) -> None:
    if start.version != (own := package_version()):
        raise other_version(start.rank, own, start.version)
    runner: LoadedRunner = load_build(start.build)(start)
    adapters: RankAdapters | None = None
    if runner.adapters is not None:
        loaded = cast("dict[int, LoadedAdapter]", runner.adapters.loaded)
        place = Place.of(RankLayout.of(start.config), start.rank)
        adapters = RankAdapters(start.rank, runner.adapters.reader(), loaded, place)
    freeze_gc_heap()
    context: zmq.Context[Any] = zmq.Context()
    RankProcess(runner, connect(context, start), parent_pipe, adapters).run()
    context.destroy()


def main() -> int:
    """Entry point of the child process."""
    start = begin(RankStart)
    if start is None:
        return 1
    faulthandler.register(STACKS_SIGNAL)
    os.set_inheritable(start.failure_pipe, False)
    log_to_stderr(start.log_level, start.rank)
    try:
        _serve(start, sys.stdin.fileno())
    except BaseException as error:
        report_failure(
            start.failure_pipe, RankFailure(failure=failure_of(error), consequence=is_collective_error(error))
        )
        logging.shutdown()
        os._exit(1)  # a destructor of what is broken may wait for the other ranks, and rank 0 for this exit
    return 0


if __name__ == "__main__":
    sys.exit(main())
