"""The API server's connection to the engine: requests out, tokens in, on the event loop.

One DEALER socket for all requests. Its descriptor is watched by the loop and drained at once, so a step costs one
wake-up however many requests it served. Tokens go to the :class:`Generation` they belong to: to a callback that takes
them at once, which saves a task switch per token, or to the task that waits for them; several steps that pile up behind
a slow client are delivered together.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import zmq

from blade_llm.engine.kv_event_publisher import KVEventPublisher
from blade_llm.engine.messages import (
    AbortRequest,
    AdapterReply,
    ClientToEngine,
    DrainUpdate,
    EngineReady,
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
from blade_llm.engine.pixel_frames import MAX_BYTES_ON_WAY, headers_of
from blade_protocol.state import EngineState


class EngineDeadError(RuntimeError):
    """The engine process has exited; the message says why."""


class GenerationClosedError(RuntimeError):
    """The generation was closed (its client disconnected, or the server stops)."""


Outputs = list[tuple[int, RequestOutput]]
"""Progress of one HTTP request, each with the index of the engine request it belongs to."""
HEARTBEAT_SIZE: Final = 2
"""How many numbers a client publishes: open requests, and when the engine last sent anything."""


class Generation:
    """One HTTP request's engine requests (several prompts, several samples) as one stream of outputs."""

    def __init__(self, client: EngineClient, request_ids: list[str]) -> None:
        self._client = client
        self._request_ids = request_ids
        self._outputs: Outputs = []
        self._take: Callable[[Outputs], bool] | None = None
        self._wake: asyncio.Future[bool] | None = None
        self._error: Exception | None = None

    async def get(self) -> Outputs:
        """All outputs that have come since the last call; waits for at least one.

        Raises :class:`EngineDeadError` or :class:`GenerationClosedError`.
        """
        while not self._outputs:
            await self._wait()
        return self._take_all()

    async def forward(self, take: Callable[[Outputs], bool]) -> None:
        """Give outputs to ``take`` as they come, without a task switch, until it returns False.

        Raises what ``take`` raises, and what :meth:`get` raises.
        """
        while not self._outputs or take(self._take_all()):
            self._take = take
            try:
                if await self._wait():
                    return
            finally:
                self._take = None

    def stop(self, index: int) -> None:
        """Abort one engine request: it needs no more tokens."""
        self._client.abort([self._request_ids[index]])

    def close(self, error: Exception | None = None) -> None:
        """Abort whatever still runs. A waiting :meth:`get` raises ``error``. Idempotent."""
        self._client.abort(self._request_ids)
        self.fail(error or GenerationClosedError("the request was closed"))

    def put(self, index: int, output: RequestOutput) -> bool:
        """Buffer ``output``; True: it is the first one, and :meth:`deliver` is due."""
        self._outputs.append((index, output))
        return len(self._outputs) == 1

    def deliver(self) -> None:
        """Pass the buffered outputs to the callback, or wake the task that waits for them."""
        if self._take is None:
            self._notify()
            return
        try:
            if not self._take(self._take_all()):
                self._take = None
                self._notify(taken=True)
        except Exception as error:  # belongs to the request, not to the socket's callback
            self.fail(error)

    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._take = None
        self._notify()

    async def _wait(self) -> bool:
        """Wait for outputs or, True, for :meth:`forward`'s function to have had its last. Raises the error there is."""
        if self._error is not None:
            raise self._error
        self._wake = asyncio.get_running_loop().create_future()
        try:
            return await self._wake
        finally:
            self._wake = None

    def _take_all(self) -> Outputs:
        outputs, self._outputs = self._outputs, []
        return outputs

    def _notify(self, *, taken: bool = False) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(taken)


class EngineClient:
    """Connects to the engine at ``address``. Use within one running event loop.

    Args:
        client_index: number of this API-server process; request ids of different processes never collide.
        heartbeat: where to publish :data:`HEARTBEAT_SIZE` numbers: open requests, and when the engine last sent
            anything (seconds of the monotonic clock).
        follow_kv: keep a copy of which blocks the engine's prefix cache has, in ``kv``.
    """

    def __init__(
        self,
        address: str,
        *,
        client_index: int = 0,
        heartbeat: memoryview[float] | None = None,
        follow_kv: bool = False,
    ) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set_hwm(0)
        self._socket.linger = 0
        self._socket.reconnect_ivl = 20  # the engine binds when its model is loaded
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(EngineToClient)
        self._routes: dict[str, tuple[Generation, int]] = {}
        """Open engine request → its generation and its index there."""
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[AdapterReply]] = {}
        """Adapter messages that have no answer yet."""
        self._pixels_on_way = 0
        """Bytes that the engine has not taken out of its socket."""
        self._client_index = client_index
        self._heartbeat: memoryview[float] | list[float] = [0.0] * HEARTBEAT_SIZE if heartbeat is None else heartbeat
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._drain_socket)
        self._ready: asyncio.Future[EngineReady] = self._loop.create_future()
        self._watchers: set[Callable[[EngineState], None]] = set()
        self._dead: EngineDeadError | None = None
        self.state: EngineState | None = None
        """The last state the engine sent."""
        self.kv = KVEventPublisher()
        self._record_progress()
        self._send(Hello(follow_kv=follow_kv))

    @property
    def alive(self) -> bool:
        return self._dead is None

    @property
    def failure(self) -> EngineDeadError:
        """Why the engine is not alive."""
        return self._dead or EngineDeadError("no answer from the engine yet")

    @property
    def num_open(self) -> int:
        """Engine requests that have not finished."""
        return len(self._routes)

    async def ready(self) -> EngineReady:
        """Wait until the model is loaded. Raises :class:`EngineDeadError`."""
        return await asyncio.shield(self._ready)

    def submit(self, requests: Sequence[GenerateRequest]) -> Generation:
        """Start ``requests``; their ids must be new (see :meth:`new_id`). Raises :class:`EngineDeadError`.

        Outputs are numbered: those of the first request and its siblings, then those of the second, …. They are
        refused, ``overloaded`` as by the engine, where more pixels than :data:`MAX_BYTES_ON_WAY` would be on their way.
        """
        if self._dead is not None:
            raise self._dead
        headers = [msgspec.structs.replace(request, pixels=headers_of(request.pixels)) for request in requests]
        messages = [self._encoder.encode(request) for request in headers]  # all or none, should one fail
        ids = [request_id for request in requests for request_id in request.all_request_ids]
        generation = Generation(self, ids)
        if not self._routes:
            self._record_progress()
        nbytes = sum(len(image.pixels) for request in requests for image in request.pixels)
        if nbytes and self._pixels_on_way + nbytes > MAX_BYTES_ON_WAY:
            self._loop.call_soon(self._refuse_pixels, generation, ids)
            return generation
        self._pixels_on_way += nbytes
        for index, request_id in enumerate(ids):
            self._routes[request_id] = (generation, index)
        for message, request in zip(messages, requests, strict=True):
            self._send_encoded(message, [image.pixels for image in request.pixels])
        self._heartbeat[0] = len(self._routes)
        return generation

    def new_id(self, name: str) -> str:
        """A request id that no other request of the server has, with ``name`` in it for the logs."""
        return f"{name}.{self._client_index}-{next(self._numbers)}"

    def abort(self, request_ids: list[str]) -> None:
        """Abort requests that still run; finished and unknown ones are ignored."""
        running = [request_id for request_id in request_ids if self._forget(request_id)]
        if running and self._dead is None:
            self._send(AbortRequest(request_ids=running))

    async def load_adapter(self, name: str, path: str, **options: bool) -> AdapterReply:
        """Load an adapter; the answer comes when it is in host memory, or at once with ``wait=False``.

        ``options``: see :class:`LoadAdapter`. Raises :class:`EngineDeadError`.
        """
        return await self._call(LoadAdapter(call_id=next(self._numbers), name=name, path=path, **options))

    async def unload_adapter(self, name: str) -> AdapterReply:
        """Forget an adapter. Raises :class:`EngineDeadError`."""
        return await self._call(UnloadAdapter(call_id=next(self._numbers), name=name))

    async def list_adapters(self) -> AdapterReply:
        """All adapters. Raises :class:`EngineDeadError`."""
        return await self._call(ListAdapters(call_id=next(self._numbers)))

    async def _call(self, message: LoadAdapter | UnloadAdapter | ListAdapters) -> AdapterReply:
        if self._dead is not None:
            raise self._dead
        answer: asyncio.Future[AdapterReply] = self._loop.create_future()
        self._calls[message.call_id] = answer
        self._send(message)
        try:
            return await answer
        finally:
            del self._calls[message.call_id]

    def set_draining(self, draining: bool, standby: bool = False) -> None:
        if self._dead is None:
            self._send(DrainUpdate(draining=draining, standby=standby))

    @contextlib.contextmanager
    def watch_state(self, callback: Callable[[EngineState], None]) -> Iterator[None]:
        """Call ``callback`` with every state the engine pushes, inside the ``with`` block."""
        self._watchers.add(callback)
        try:
            yield
        finally:
            self._watchers.discard(callback)

    def fail(self, error: EngineDeadError) -> None:
        """Fail every open and future request with ``error``: the engine has exited."""
        self._dead = error
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # retrieved, as there may be no waiter
        for generation in self._open():
            generation.fail(error)
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(error)
        self._routes.clear()
        self._heartbeat[0] = 0

    def stop_open(self) -> None:
        """Abort all that is open; the generations get :class:`GenerationClosedError`."""
        for generation in self._open():
            generation.close(GenerationClosedError("the server is shutting down"))

    def close(self) -> None:
        """Close the socket."""
        self._loop.remove_reader(self._socket.fileno())
        self._context.destroy(linger=0)

    def _open(self) -> set[Generation]:
        return {generation for generation, _ in self._routes.values()}

    def _refuse_pixels(self, generation: Generation, request_ids: list[str]) -> None:
        text = f"busy: images of {self._pixels_on_way} bytes are on their way to the engine; try again in a moment"
        error = RequestError(kind="overloaded", message=text)
        for index, request_id in enumerate(request_ids):
            generation.put(index, RequestOutput(request_id=request_id, finish_reason="abort", error=error))
        generation.deliver()

    def _forget(self, request_id: str) -> bool:
        known = self._routes.pop(request_id, None) is not None
        self._heartbeat[0] = len(self._routes)
        return known

    def _record_progress(self) -> None:
        self._heartbeat[1] = time.monotonic()

    def _send(self, message: ClientToEngine) -> None:
        self._send_encoded(self._encoder.encode(message))

    def _send_encoded(self, message: bytes, pixels: Sequence[bytes] = ()) -> None:
        self._socket.send_multipart((message, *pixels), zmq.NOBLOCK, copy=not pixels)
        # A send can consume the descriptor's edge: poll for messages that came meanwhile.
        self._loop.call_soon(self._drain_socket)

    def _drain_socket(self) -> None:
        updated: list[Generation] = []
        while not self._socket.closed:
            try:
                payload = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._receive(self._decoder.decode(payload), updated)
        # Only now: steps that were received together are delivered together.
        for generation in updated:
            generation.deliver()

    def _receive(self, message: EngineToClient, updated: list[Generation]) -> None:
        self._record_progress()
        match message:
            case StepOutputs():
                routes = self._routes
                for output in message.outputs:
                    route = routes.get(output.request_id)
                    if route is None:
                        continue
                    generation, index = route
                    if generation.put(index, output):
                        updated.append(generation)
                    if output.finish_reason is not None:
                        self._forget(output.request_id)
            case StateUpdate():
                if message.kv is not None:
                    self.kv.apply(message.kv)
                self._set_state(message.state)
            case PixelsTaken():
                self._pixels_on_way -= message.nbytes
            case AdapterReply():
                call = self._calls.get(message.call_id)
                if call is not None and not call.done():
                    call.set_result(message)
            case EngineReady():
                self._set_state(message.state)
                if not self._ready.done():
                    self._ready.set_result(message)

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        for watcher in list(self._watchers):
            watcher(state)
