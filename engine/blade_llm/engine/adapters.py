"""The adapters of an engine: their names, which of them are in host memory, and the requests that wait for theirs.

Adapters are read on a thread, so no step waits for a disk. A request for one that is not in host memory waits here,
outside the scheduler, and holds no slot. Host memory has room for so many; the least recently used one that no request
uses makes room for the next. One that cannot be placed waits for its turn: requests for those that are there may pass
it, but not for ever. Which of the adapters in host memory are on the device is the scheduler's business
(:mod:`blade_llm.cache.adapters`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol

from blade_llm.engine.adapter_paths import find_folder, in_roots, normalized
from blade_llm.engine.messages import AdapterInfo, AdapterReply, LoadAdapter, RequestError, RequestOutput, UnloadAdapter
from blade_llm.models.errors import ModelFilesError
from blade_llm.scheduling.request import Request, RequestRefusedError
from blade_llm.scheduling.scheduler import Scheduler
from blade_protocol.adapters import AdapterCounts

WAIT_S: Final = 0.01
"""The longest that a step waits for an adapter when there is nothing else to do; a loaded one ends the wait."""
MOST_NAMES: Final = 1024
"""Adapters that have a name at once."""
MOST_PENDING: Final = 64
"""Adapters that wait to be loaded."""
MOST_OVERTAKES: Final = 32
"""So many prompts may pass one whose adapter waits for room in host memory."""

logger = logging.getLogger(__name__)


class LoadedAdapter(Protocol):
    """An adapter in host memory."""

    @property
    def digest(self) -> bytes: ...

    @property
    def rank(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


@dataclass(eq=False, slots=True)
class _Adapter:
    name: str
    path: str
    """As it was given: a folder, or a hub id."""
    number: int = 0
    """In host memory under this number; 0: it is not."""
    digest: bytes = b""
    """Of what was loaded last."""
    rank: int = 0
    nbytes: int = 0
    pinned: bool = False
    by_path: bool = False
    """A request named its folder: it goes when host memory has no room for it any more."""
    loading: Future[LoadedAdapter] | None = None
    queued: bool = False
    waiting: list[list[Request]] = field(default_factory=list)
    """Requests that wait for it, in order: the samples of one prompt together."""
    calls: list[Callable[[AdapterReply], None]] = field(default_factory=list)
    """Who is to hear that it is loaded."""


class AdapterManager:
    """The adapters of one engine. Not thread-safe: the engine's thread calls everything.

    Args:
        read: reads a folder, on a thread. Raises ``ModelFilesError``.
        loaded: where to put what it read, by number; the runner reads it there.
        most: adapters in host memory.
        submit: schedules requests, whose adapter is in host memory.
        base_names: of the base model, which no adapter may have.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        read: Callable[[Path], LoadedAdapter],
        loaded: dict[int, LoadedAdapter],
        *,
        most: int,
        submit: Callable[[list[Request]], None],
        base_names: Iterable[str] = (),
        allowed_roots: Sequence[str] = (),
    ) -> None:
        self._residency = scheduler.adapters
        self._read = read
        self._loaded = loaded
        self._most = most
        self._submit = submit
        self._base_names = frozenset(base_names)
        self._roots = tuple(allowed_roots)
        self._names: dict[str, _Adapter] = {}
        self._host: dict[int, _Adapter] = {}
        """In host memory, the least recently used first. Some may have no name any more: they go with their last
        request."""
        self._queue: deque[_Adapter] = deque()
        """To be loaded, in order."""
        self._loading: list[_Adapter] = []
        self._held: list[tuple[_Adapter, list[Request]]] = []
        """Requests whose adapter is there, but that would pass one that has waited too long."""
        self._overtaken = 0
        """Prompts that passed the first of the queue."""
        self._numbers = 0
        self._threads: ThreadPoolExecutor | None = None
        self.hits = 0
        """Prompts whose adapter was in host memory."""
        self.loads = 0
        """Adapters read from disk."""
        self.evictions = 0
        """Adapters that left host memory for others."""

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, requests: list[Request], name: str, digest: str = "") -> None:
        """Schedule ``requests``, samples of one prompt, with the adapter ``name`` once it is in host memory.

        ``digest``: what its content must have, in hexadecimal; empty for any.

        Raises:
            RequestRefusedError: there is no such adapter (``unknown_adapter``), or the requests can never run.
        """
        adapter = self._find(name)
        for request in requests:
            request.adapter_digest = bytes.fromhex(digest)
        if adapter.number and not (self._queue and self._overtaken >= MOST_OVERTAKES):
            self._overtaken += bool(self._queue)
            self.hits += 1
            self._start(adapter, requests)
        elif adapter.number:
            self._held.append((adapter, requests))
        else:
            self._enqueue(adapter)
            adapter.waiting.append(requests)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests that wait. Their adapters are loaded all the same."""
        gone = set(request_ids)
        for adapter in [*self._queue, *self._loading]:
            kept = [[each for each in some if each.request_id not in gone] for some in adapter.waiting]
            adapter.waiting = [some for some in kept if some]
        held, self._held = self._held, []
        for adapter, some in held:
            if left := [each for each in some if each.request_id not in gone]:
                self._held.append((adapter, left))

    @property
    def waiting(self) -> bool:
        """Whether anything waits for an adapter."""
        return bool(self._queue or self._loading or self._held)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their adapters."""
        waiting = (some for adapter in (*self._queue, *self._loading) for some in adapter.waiting)
        return sum(map(len, waiting)) + sum(len(some) for _, some in self._held)

    def poll(self) -> list[RequestOutput]:
        """Take what was loaded, schedule who waited for it, and load the next; the outputs of requests that failed."""
        failed: list[RequestOutput] = []
        for adapter in [each for each in self._loading if each.loading is not None and each.loading.done()]:
            self._loading.remove(adapter)
            failed += self._finish(adapter)
        failed += self._begin_loads()
        return failed

    def wait(self) -> None:
        """Wait a moment for an adapter, as there is nothing else to do."""
        futures = [adapter.loading for adapter in self._loading if adapter.loading is not None]
        if futures:
            wait(futures, WAIT_S, "FIRST_COMPLETED")

    # ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def names(self) -> tuple[str, ...]:
        """Of all adapters that were loaded, in order."""
        return tuple(sorted(name for name, adapter in self._names.items() if adapter.digest))

    @property
    def digests(self) -> tuple[str, ...]:
        """Of their contents, in hexadecimal."""
        return tuple(self._names[name].digest.hex() for name in self.names)

    @property
    def counts(self) -> AdapterCounts:
        """What requests found where, since the start."""
        return AdapterCounts(
            device_hits=self._residency.hits,
            device_loads=self._residency.loads,
            host_hits=self.hits,
            host_loads=self.loads,
            host_evictions=self.evictions,
        )

    def infos(self) -> list[AdapterInfo]:
        """All adapters, with where they are."""
        return [
            AdapterInfo(
                name=name,
                path=adapter.path,
                tier=self._tier(adapter),
                rank=adapter.rank,
                nbytes=adapter.nbytes,
                digest=adapter.digest.hex(),
                pinned=adapter.pinned,
                requests=self._residency.live(adapter.number),
            )
            for name, adapter in sorted(self._names.items())
        ]

    def load(self, message: LoadAdapter, reply: Callable[[AdapterReply], None]) -> None:
        """Load an adapter and give it a name; ``reply`` says when it is in host memory, or why it is not."""

        refusal = self._load_refusal(message)
        if refusal is not None:
            reply(AdapterReply(call_id=message.call_id, error=refusal))
            return
        name = message.name
        known = self._names.get(name)
        adapter = known or _Adapter(name, message.path)
        adapter.by_path = False
        self._names[name] = adapter
        if message.pinned:
            adapter.pinned = True
        if adapter.number:
            reply(AdapterReply(call_id=message.call_id))
            return
        adapter.calls.append(lambda answer: reply(AdapterReply(call_id=message.call_id, error=answer.error)))
        self._enqueue(adapter)

    def load_now(self, name: str, path: str) -> None:
        """Load an adapter of ``--lora_modules`` and keep it in host memory. Raises ``ModelFilesError``."""
        if name in self._base_names:
            raise ModelFilesError(f"--lora_modules {name}: the name is the base model's; choose another")
        if name in self._names:
            raise ModelFilesError(f"--lora_modules has two adapters called {name}; rename one")
        if len(self._host) >= self._most:
            raise ModelFilesError(
                f"--lora_modules names more adapters than --max_cpu_loras {self._most} allows; raise it"
            )
        adapter = _Adapter(name, path, pinned=True)
        try:
            self._take(adapter, self._read(find_folder(path)))
        except ModelFilesError as error:
            raise ModelFilesError(f"--lora_modules {name}={path}: {error}") from None
        self._names[name] = adapter

    def unload(self, message: UnloadAdapter) -> AdapterReply:
        """Take an adapter's name away. Requests that have begun go on; with the last of them its memory is free."""
        adapter = self._names.pop(message.name, None)
        if adapter is None:
            known = ", ".join(self.names) or "none"
            error = RequestError(
                message=f"there is no adapter {message.name!r}; loaded are {known}", kind="unknown_adapter"
            )
            return AdapterReply(call_id=message.call_id, error=error)
        adapter.pinned = False
        self._drop_unnamed()
        return AdapterReply(call_id=message.call_id)

    def _load_refusal(self, message: LoadAdapter) -> RequestError | None:
        """Why an adapter may not be loaded under its name."""
        name, path = message.name, message.path
        known = self._names.get(name)
        if not name or name != name.strip():
            return RequestError(message="lora_name is empty or has blanks around it; give a name")
        if name in self._base_names:
            return RequestError(message=f"lora_name {name!r} is the base model's; choose another")
        if message.only_allowed_roots and (problem := in_roots(path, self._roots)):
            return RequestError(message=problem)
        if known is not None and not known.by_path and normalized(known.path) != normalized(path):
            text = f"adapter {name!r} is loaded already, from {known.path}; unload it first"
            return RequestError(message=text, kind="conflict")
        if known is None and len(self._names) >= MOST_NAMES:
            return RequestError(message=f"{MOST_NAMES} adapters are loaded, no more may; unload some")
        if len(self._queue) >= MOST_PENDING and not (known is not None and (known.queued or known.number)):
            text = f"busy: {MOST_PENDING} adapters wait to be loaded; try again in a moment"
            return RequestError(message=text, kind="overloaded")
        pinned = sum(adapter.pinned for adapter in self._names.values() if adapter is not known)
        if message.pinned and pinned >= self._most - 1:
            return RequestError(message=f"{pinned} adapters are pinned, which leaves no room; raise --max_cpu_loras")
        return None

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _find(self, name: str) -> _Adapter:
        adapter = self._names.get(name)
        if adapter is not None:
            return adapter
        path = normalized(name)
        if "/" not in name and not name.startswith("~"):
            raise _unknown(f"model {name!r} does not exist; this server has {self._all_names()}")
        if problem := in_roots(name, self._roots):
            raise _unknown(problem)
        adapter = self._names.get(path)
        if adapter is None:
            if len(self._names) >= MOST_NAMES or len(self._queue) >= MOST_PENDING:
                raise RequestRefusedError(
                    RequestError(kind="overloaded", message="busy: too many adapters are loaded; try again in a moment")
                )
            adapter = self._names[path] = _Adapter(path, path, by_path=True)
        return adapter

    def _all_names(self) -> str:
        return ", ".join([*sorted(self._base_names), *self.names])

    def _enqueue(self, adapter: _Adapter) -> None:
        """Load it in its turn: :meth:`poll` begins."""
        if adapter.loading is None and not adapter.queued:
            adapter.queued = True
            self._queue.append(adapter)

    def _begin_loads(self) -> list[RequestOutput]:
        """Load the first of the queue as far as host memory has room; then whom it held up may go on."""
        self._drop_unnamed()
        while self._queue and self._make_room():
            adapter = self._queue.popleft()
            adapter.queued = False
            self._overtaken = 0
            if self._threads is None:
                self._threads = ThreadPoolExecutor(1, "adapters")
            adapter.loading = self._threads.submit(self._read_from, adapter.path)
            self._loading.append(adapter)
        failed: list[RequestOutput] = []
        if not self._queue or not self._overtaken:
            held, self._held = self._held, []
            for adapter, requests in held:
                if adapter.number:
                    failed += self._start_late(adapter, requests)
                else:  # it made room meanwhile
                    adapter.waiting.append(requests)
                    self._enqueue(adapter)
        return failed

    def _read_from(self, path: str) -> LoadedAdapter:
        """On the thread."""
        return self._read(find_folder(path))

    def _make_room(self) -> bool:
        if len(self._host) + len(self._loading) < self._most:
            return True
        for number, adapter in self._host.items():
            if not adapter.pinned and not self._residency.live(number):
                self._evict(adapter)
                self.evictions += 1
                return True
        return False

    def _drop_unnamed(self) -> None:
        """Free what was unloaded and is used no more."""
        for adapter in list(self._host.values()):
            if self._names.get(adapter.name) is not adapter and not self._residency.live(adapter.number):
                self._evict(adapter)

    def _evict(self, adapter: _Adapter) -> None:
        self._residency.forget(adapter.number)
        del self._host[adapter.number], self._loaded[adapter.number]
        adapter.number = 0
        if adapter.by_path and self._names.get(adapter.name) is adapter:
            del self._names[adapter.name]

    def _take(self, adapter: _Adapter, weights: LoadedAdapter) -> None:
        self._numbers += 1
        adapter.number = self._numbers
        adapter.digest, adapter.rank, adapter.nbytes = weights.digest, weights.rank, weights.nbytes
        self._loaded[adapter.number] = weights
        self._host[adapter.number] = adapter
        self.loads += 1

    def _finish(self, adapter: _Adapter) -> list[RequestOutput]:
        """An adapter was read, or could not be."""
        assert adapter.loading is not None
        future, adapter.loading = adapter.loading, None
        waiting, adapter.waiting = adapter.waiting, []
        calls, adapter.calls = adapter.calls, []
        error = future.exception()
        if error is not None:
            if not isinstance(error, ModelFilesError):
                logger.error("adapter %s could not be loaded", adapter.name, exc_info=error)
            if self._names.get(adapter.name) is adapter and (calls or adapter.by_path):
                del self._names[adapter.name]
            text = str(error) if isinstance(error, ModelFilesError) else f"adapter {adapter.name}: {error!r}"
            why = RequestError(message=text, kind="unknown_adapter")
            for reply in calls:
                reply(AdapterReply(call_id=0, error=why))
            return [_failed(request, why) for requests in waiting for request in requests]
        self._take(adapter, future.result())
        for reply in calls:
            reply(AdapterReply(call_id=0))
        failed: list[RequestOutput] = []
        for requests in waiting:
            failed += self._start_late(adapter, requests)
        return failed

    def _start(self, adapter: _Adapter, requests: list[Request]) -> None:
        self._prepare(adapter, requests)
        self._submit(requests)

    def _start_late(self, adapter: _Adapter, requests: list[Request]) -> list[RequestOutput]:
        """The same for requests that have waited; the outputs of those that are refused only now."""
        try:
            self._start(adapter, requests)
        except RequestRefusedError as error:
            return [_failed(request, error.error) for request in requests]
        return []

    def _prepare(self, adapter: _Adapter, requests: list[Request]) -> None:
        self._host[adapter.number] = self._host.pop(adapter.number)  # used last
        for request in requests:
            if request.adapter_digest not in (b"", adapter.digest):
                text = f"adapter {adapter.name!r} has other weights here than where the answer began"
                raise RequestRefusedError(RequestError(message=text, kind="adapter_differs"))
            request.adapter, request.adapter_digest = adapter.number, adapter.digest

    def _tier(self, adapter: _Adapter) -> Literal["device", "host", "disk"]:
        if adapter.number and self._residency.has_slot(adapter.number):
            return "device"
        return "host" if adapter.number else "disk"


def _unknown(message: str) -> RequestRefusedError:
    return RequestRefusedError(RequestError(message=message, kind="unknown_adapter"))


def _failed(request: Request, error: RequestError) -> RequestOutput:
    return RequestOutput(request_id=request.request_id, finish_reason="abort", error=error)
