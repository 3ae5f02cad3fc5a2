"""The engine process: receives requests over ZeroMQ, steps the core, sends tokens back.

Started as ``python -m blade_llm.engine.process BUILD`` by :mod:`blade_llm.engine.launch` with a clean interpreter. Its
standard input brings one :class:`EngineStart` and then stays open as the parent-death pipe: end of file means that the
parent has exited. With no request live it blocks in poll and uses no CPU; while it works it polls the socket between
steps without waiting.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

import msgspec
import zmq

from blade_llm.cache.events import KVChanges
from blade_llm.engine.child_process import ChildFailedError, begin, failure_of, load_build, report_failure
from blade_llm.engine.heartbeat import Heartbeat, cpu_seconds, open_heartbeat
from blade_llm.engine.messages import (
    AbortRequest,
    AdapterReply,
    ClientToEngine,
    DrainUpdate,
    EngineReady,
    EngineStart,
    EngineToClient,
    GenerateRequest,
    Hello,
    ListAdapters,
    LoadAdapter,
    PixelsTaken,
    RequestError,
    RequestOutput,
    StateUpdate,
    StepOutputs,
    UnloadAdapter,
)
from blade_llm.engine.pixel_frames import join
from blade_llm.engine.ranks.lost import RankWatch
from blade_llm.engine.start import freeze_gc_heap, log_to_stderr
from blade_llm.scheduling.request import RequestRefusedError
from blade_protocol.state import EngineState, KVBatch

STATE_INTERVAL_S: Final = 0.1
"""Least time between two pushed states."""


class Core(Protocol):
    """The core that this process steps; :class:`blade_llm.engine.core.EngineCore` is the real one."""

    @property
    def ranks(self) -> RankWatch | None: ...

    @property
    def computes_on_host(self) -> bool: ...

    @property
    def has_work(self) -> bool: ...

    def add(self, request: GenerateRequest) -> None: ...

    def abort(self, request_ids: list[str]) -> None: ...

    def change_adapters(
        self, message: LoadAdapter | UnloadAdapter | ListAdapters, reply: Callable[[AdapterReply], None]
    ) -> None: ...

    def step(self) -> list[RequestOutput]: ...

    def state(self, *, epoch: str, sequence: int, draining: bool) -> EngineState: ...

    def release_cache(self) -> None: ...

    def ready(self, state: EngineState) -> EngineReady: ...

    def follow_kv(self) -> bytes: ...

    @property
    def kv_changed(self) -> bool: ...

    def kv_changes(self) -> KVChanges | None: ...


class EngineProcess:
    """Serves ``core`` on ``socket`` (a bound ROUTER) until ``parent_pipe`` (a file descriptor) reaches end of file."""

    def __init__(
        self, core: Core, socket: zmq.Socket[bytes], parent_pipe: int, heartbeat: Heartbeat | None = None
    ) -> None:
        self._core = core
        self._heartbeat = heartbeat
        self._socket = socket
        self._parent_pipe = parent_pipe
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(parent_pipe, zmq.POLLIN)
        self._ranks = core.ranks
        if self._ranks is not None:  # one may be lost while there is nothing to do
            self._poller.register(self._ranks.lost_descriptor, zmq.POLLIN)
        self._decoder = msgspec.msgpack.Decoder(ClientToEngine)
        self._encoder = msgspec.msgpack.Encoder()
        self._owners: dict[str, bytes] = {}
        """Live request → ZeroMQ identity of the API server that sent it."""
        self._clients: set[bytes] = set()
        self._kv_followers: set[bytes] = set()
        """Clients that follow the prefix cache."""
        self._kv_sequence = 0
        self._epoch = uuid.uuid4().hex[:12]
        self._draining = False
        self._standby: bool | None = None
        """Whether the KV cache's memory was given back; None: it is not to be."""
        self._state = core.state(epoch=self._epoch, sequence=0, draining=False)
        """The state as last pushed."""
        self._state_due = 0.0

    def run(self) -> None:
        """Return when the parent has exited; whatever the core raises passes through."""
        while self.turn():
            pass

    def turn(self) -> bool:
        """Receive, step, send; wait for a message when there is nothing to do. False: the parent has exited."""
        if not self._receive():
            return False
        if self._core.has_work:
            if self._heartbeat is not None:
                self._heartbeat.step_begins()
            if self._standby:  # a request that was on its way
                self._standby = False
            self._send_outputs(self._core.step())
        if self._standby is False and not self._core.has_work:
            self._core.release_cache()
            self._standby = True
        self._push_state()
        return True

    def _receive(self) -> bool:
        """Take all messages that are there; wait for one when there is nothing to do. False: the parent has exited."""
        wait_ms: int | None = 0
        if not self._core.has_work:
            wait_ms = self._idle_wait_ms()
            if self._heartbeat is not None:
                self._heartbeat.idle()
        ready = dict(self._poller.poll(wait_ms))
        if self._parent_pipe in ready and not os.read(self._parent_pipe, 1):
            return False
        if self._ranks is not None:
            self._ranks.raise_if_lost()
        if self._socket in ready:
            while True:
                try:
                    client, payload, *pixels = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                message = self._decoder.decode(payload.buffer)
                if pixels:
                    assert isinstance(message, GenerateRequest), "only requests have pixels"
                    message = msgspec.structs.replace(message, pixels=join(message.pixels, pixels))
                    self._send(client.bytes, PixelsTaken(nbytes=sum(map(len, pixels))))
                self._handle(client.bytes, message)
        return True

    def _idle_wait_ms(self) -> int | None:
        """No limit, unless the last change of state has not been pushed yet."""
        if not self._changed():
            return None
        return max(0, int((self._state_due - time.monotonic()) * 1000) + 1)

    def _handle(self, client: bytes, message: ClientToEngine) -> None:
        match message:
            case GenerateRequest():
                ids = message.all_request_ids
                self._owners.update(dict.fromkeys(ids, client))
                try:
                    self._core.add(message)
                except ValueError as refused:  # this request alone is at fault
                    error = RequestError(message=str(refused))
                    if isinstance(refused, RequestRefusedError):
                        error = refused.error
                    self._send_outputs(
                        [RequestOutput(request_id=each, finish_reason="abort", error=error) for each in ids]
                    )
            case AbortRequest():
                self._core.abort(message.request_ids)
                for request_id in message.request_ids:
                    self._owners.pop(request_id, None)
            case DrainUpdate():
                self._draining = message.draining
                wanted = message.draining and message.standby
                self._standby = (self._standby or False) if wanted else None
            case LoadAdapter() | UnloadAdapter():
                self._core.change_adapters(message, partial(self._send_change, client))
            case ListAdapters():
                self._core.change_adapters(message, partial(self._send, client))
            case Hello():
                self._clients.add(client)
                self._send(client, self._core.ready(self._state))  # later changes are pushed to all clients at once
                if message.follow_kv:
                    self._kv_followers.add(client)
                    self._send(client, StateUpdate(state=self._state, kv=self._all_kv()))

    def _send_change(self, client: bytes, reply: AdapterReply) -> None:
        """Reply to a change of the adapters; whoever asks for the state after the reply finds the change in it."""
        if reply.error is None and not reply.pending:
            self._state_due = 0.0
            self._push_state()
        self._send(client, reply)

    def _send_outputs(self, outputs: list[RequestOutput]) -> None:
        by_client: dict[bytes, list[RequestOutput]] = {}
        for output in outputs:
            finished = output.finish_reason is not None
            owner = self._owners.pop(output.request_id, None) if finished else self._owners.get(output.request_id)
            if owner is not None:
                by_client.setdefault(owner, []).append(output)
        for client, mine in by_client.items():
            self._send(client, StepOutputs(outputs=mine))

    def _send(self, client: bytes, message: EngineToClient) -> None:
        self._socket.send_multipart((client, self._encoder.encode(message)))

    def _current_state(self) -> EngineState:
        state = self._core.state(epoch=self._epoch, sequence=self._state.sequence, draining=self._draining)
        return msgspec.structs.replace(state, standby=True) if self._standby else state

    def _changed(self) -> bool:
        return self._core.kv_changed or self._current_state() != self._state

    def _push_state(self) -> None:
        now = time.monotonic()
        if now < self._state_due or not self._changed():
            return
        self._state_due = now + STATE_INTERVAL_S
        self._state = msgspec.structs.replace(self._current_state(), sequence=self._state.sequence + 1)
        update = StateUpdate(state=self._state)
        with_kv = StateUpdate(state=self._state, kv=self._new_kv())
        for client in self._clients:
            self._send(client, with_kv if client in self._kv_followers else update)

    def _all_kv(self) -> KVBatch:
        """The whole prefix cache. It may hold what the next batch repeats, which changes nothing."""
        return KVBatch(sequence=self._kv_sequence, stored=self._core.follow_kv(), lost=True)

    def _new_kv(self) -> KVBatch | None:
        """Changes of the prefix cache since the last batch."""
        changes = self._core.kv_changes()
        if changes is None:
            return None
        self._kv_sequence += 1
        if changes.lost:
            return self._all_kv()
        return KVBatch(sequence=self._kv_sequence, stored=changes.stored, removed=changes.removed)


def main() -> int:
    """Entry point of the child process."""
    start = begin(EngineStart)
    if start is None:
        return 1
    os.set_inheritable(start.failure_pipe, False)
    os.set_inheritable(start.heartbeat, False)
    log_to_stderr(start.log_level)
    try:
        context: zmq.Context[Any] = zmq.Context()
        socket = context.socket(zmq.ROUTER)
        socket.set_hwm(0)  # a slow API server costs memory, never tokens
        socket.linger = 0
        core: Core = load_build(start.build)(start.config)
        socket.bind(start.address)
        freeze_gc_heap()
        heartbeat: Heartbeat | None = None
        if core.computes_on_host:
            others = () if core.ranks is None else core.ranks.pids
            heartbeat = Heartbeat(
                open_heartbeat(start.heartbeat), cpu_time=lambda: time.process_time() + cpu_seconds(others)
            )
        EngineProcess(core, socket, sys.stdin.fileno(), heartbeat).run()
        if heartbeat is not None:
            heartbeat.close()
        context.destroy()
    except BaseException as error:
        report_failure(start.failure_pipe, failure_of(error))
        if isinstance(error, ChildFailedError):
            logging.shutdown()
            os._exit(1)  # a destructor of what is broken may wait for the rank that is lost
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
