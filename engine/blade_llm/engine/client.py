"""The front process's side of the engine: requests out, tokens in, on the event loop.

One DEALER socket for all requests. Its descriptor is watched by the loop and drained at once, so a step costs one
wake-up however many requests it served. Tokens go to the :class:`Generation` that waits for them; several steps that
pile up behind a slow client are taken together.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import zmq

from blade_llm.engine.messages import (
    AbortRequest,
    DrainUpdate,
    EngineReady,
    EngineToFront,
    FrontToEngine,
    GenerateRequest,
    Hello,
    RequestOutput,
    StateUpdate,
    StepOutputs,
)
from blade_protocol.state import EngineState


class EngineDeadError(RuntimeError):
    """The engine process has ended; the message says why."""


class GenerationClosedError(RuntimeError):
    """The generation was closed (its client went away, or the server stops)."""


class Generation:
    """One HTTP request's engine requests (several prompts, several samples) as one stream of outputs."""

    def __init__(self, client: EngineClient, request_ids: list[str]) -> None:
        self._client = client
        self._index = {request_id: index for index, request_id in enumerate(request_ids)}
        self._outputs: list[tuple[int, RequestOutput]] = []
        self._wake: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    async def get(self) -> list[tuple[int, RequestOutput]]:
        """All outputs that have come since the last call, each with its request's index; waits for at least one.

        Raises :class:`EngineDeadError` or :class:`GenerationClosedError`.
        """
        while not self._outputs:
            if self._error is not None:
                raise self._error
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        outputs, self._outputs = self._outputs, []
        return outputs

    def stop(self, index: int) -> None:
        """Tell the engine that this one needs no more tokens."""
        self._client.abort([request_id for request_id, i in self._index.items() if i == index])

    def close(self, error: Exception | None = None) -> None:
        """Abort whatever still runs. A waiting :meth:`get` raises ``error``. Idempotent."""
        self._client.abort(list(self._index))
        self.fail(error or GenerationClosedError("the request was closed"))

    def put(self, output: RequestOutput) -> None:
        self._outputs.append((self._index[output.request_id], output))
        self._notify()

    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._notify()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class EngineClient:
    """Connects to the engine at ``address``. Use within one running event loop."""

    def __init__(self, address: str) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set_hwm(0)
        self._socket.linger = 0
        self._socket.reconnect_ivl = 20  # the engine binds when its model is loaded
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(EngineToFront)
        self._generations: dict[str, Generation] = {}
        self._numbers = itertools.count()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._drain_socket)
        self._ready: asyncio.Future[EngineReady] = self._loop.create_future()
        self._idle = asyncio.Event()
        self._idle.set()
        self._watchers: set[Callable[[EngineState], None]] = set()
        self._dead: EngineDeadError | None = None
        self.state: EngineState | None = None
        """The last state the engine sent."""
        self.last_progress = time.monotonic()
        """When the engine last said anything."""
        self._send(Hello())

    @property
    def alive(self) -> bool:
        return self._dead is None

    @property
    def death(self) -> EngineDeadError:
        """Why it is not alive."""
        return self._dead or EngineDeadError("no answer from the engine yet")

    @property
    def num_open(self) -> int:
        """Engine requests that have not finished."""
        return len(self._generations)

    async def ready(self) -> EngineReady:
        """Wait until the model is loaded. Raises :class:`EngineDeadError`."""
        return await asyncio.shield(self._ready)

    async def idle(self) -> None:
        """Wait until no request is open."""
        await self._idle.wait()

    def submit(self, requests: Sequence[GenerateRequest]) -> Generation:
        """Start ``requests``; their ids must be new (see :meth:`new_id`). Raises :class:`EngineDeadError`."""
        if self._dead is not None:
            raise self._dead
        messages = [self._encoder.encode(request) for request in requests]  # all or none, should one fail
        generation = Generation(self, [request.request_id for request in requests])
        if not self._generations:
            self.last_progress = time.monotonic()
        for request, message in zip(requests, messages, strict=True):
            self._generations[request.request_id] = generation
            self._send_encoded(message)
        self._idle.clear()
        return generation

    def new_id(self, name: str) -> str:
        """A request id that no other request of this front has, with ``name`` in it for people to find."""
        return f"{name}.{next(self._numbers)}"

    def abort(self, request_ids: list[str]) -> None:
        """Forget requests that still run; finished and unknown ones are ignored."""
        running = [request_id for request_id in request_ids if self._forget(request_id)]
        if running and self._dead is None:
            self._send(AbortRequest(request_ids=running))

    def set_draining(self, draining: bool) -> None:
        if self._dead is None:
            self._send(DrainUpdate(draining=draining))

    @contextlib.contextmanager
    def watch_state(self, callback: Callable[[EngineState], None]) -> Iterator[None]:
        """Call ``callback`` with every state the engine pushes, inside the ``with`` block."""
        self._watchers.add(callback)
        try:
            yield
        finally:
            self._watchers.discard(callback)

    def fail(self, error: EngineDeadError) -> None:
        """The engine is gone: every open and future request gets ``error``."""
        self._dead = error
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # nobody has to be waiting
        for generation in set(self._generations.values()):
            generation.fail(error)
        self._generations.clear()
        self._idle.set()

    def stop_open(self) -> None:
        """Abort all that is open; the generations get :class:`GenerationClosedError`."""
        for generation in set(self._generations.values()):
            generation.close(GenerationClosedError("the server is shutting down"))

    def close(self) -> None:
        """Close the socket."""
        self._loop.remove_reader(self._socket.fileno())
        self._context.destroy(linger=0)

    def _forget(self, request_id: str) -> bool:
        known = self._generations.pop(request_id, None) is not None
        if not self._generations:
            self._idle.set()
        return known

    def _send(self, message: FrontToEngine) -> None:
        self._send_encoded(self._encoder.encode(message))

    def _send_encoded(self, message: bytes) -> None:
        self._socket.send(message, zmq.NOBLOCK)
        # A send can consume the descriptor's edge: look for messages that came meanwhile.
        self._loop.call_soon(self._drain_socket)

    def _drain_socket(self) -> None:
        while not self._socket.closed:
            try:
                payload = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._receive(self._decoder.decode(payload))

    def _receive(self, message: EngineToFront) -> None:
        self.last_progress = time.monotonic()
        match message:
            case StepOutputs():
                for output in message.outputs:
                    generation = self._generations.get(output.request_id)
                    if generation is not None:
                        generation.put(output)
                        if output.finish_reason is not None:
                            self._forget(output.request_id)
            case StateUpdate():
                self._set_state(message.state)
            case EngineReady():
                self._set_state(message.state)
                if not self._ready.done():
                    self._ready.set_result(message)

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        for watcher in list(self._watchers):
            watcher(state)
