"""The adapters of an engine, and the requests that wait for theirs.

Adapters are read on a thread, so no step waits for a disk. A request for one that is not in host memory waits here,
outside the scheduler, and holds no slot. Host memory has room for so many; the least recently used one that no request
uses makes room for the next. One that cannot be placed waits for its turn: requests for those that are there may pass
it, but not for ever. Which of the adapters in host memory are on the device is the scheduler's business
(:mod:`blade_llm.cache.adapters`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from blade_llm.engine.adapters.changes import AdapterChanges
from blade_llm.engine.adapters.entry import Adapter, LoadedAdapter
from blade_llm.engine.adapters.files import AdapterFiles, AdapterReader, OtherRanks
from blade_llm.engine.adapters.host_memory import HostMemory
from blade_llm.engine.adapters.names import AdapterNames
from blade_llm.engine.adapters.paths import normalized
from blade_llm.engine.adapters.pipeline import AdapterPipeline
from blade_llm.engine.messages import AdapterInfo, AdapterReply, LoadAdapter, RequestError, RequestOutput, UnloadAdapter
from blade_llm.models.errors import ModelFilesError
from blade_llm.scheduling.request import Request, RequestRefusedError, pixel_bytes
from blade_llm.scheduling.scheduler import Scheduler
from blade_protocol.adapters import AdapterCounts, AdapterTier

MOST_OVERTAKES: Final = 32
"""So many prompts may pass one whose adapter waits for room in host memory."""

logger = logging.getLogger(__name__)


class AdapterManager:
    """The adapters of one engine. Not thread-safe: the engine's thread calls everything.

    Args:
        reader: reads folders, on threads.
        loaded: where to put what it read, by number; the runner reads it there.
        ranks: read their parts of the same adapters; None: there are no others.
        most: adapters in host memory.
        submit: schedules requests, whose adapter is in host memory.
        base_names: of the base model, which no adapter may have.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        reader: AdapterReader,
        loaded: dict[int, LoadedAdapter],
        ranks: OtherRanks | None = None,
        *,
        most: int,
        submit: Callable[[list[Request]], None],
        base_names: Iterable[str] = (),
        allowed_roots: Sequence[str] = (),
    ) -> None:
        self._residency = scheduler.adapters
        self._submit = submit
        self._files = AdapterFiles(reader, ranks)
        self._host = HostMemory(scheduler.adapters, loaded, most, self._files.forget)
        self._names = AdapterNames(self._host, base_names, allowed_roots)
        self._pipeline = AdapterPipeline(self._files, self._host)
        self._changes = AdapterChanges(self._names, self._host, self._pipeline, self._files)
        self._held: list[tuple[Adapter, list[Request]]] = []
        """Requests whose adapter is there, but that would pass one that has waited too long."""
        self._overtaken = 0
        """Prompts that passed the first of the queue."""
        self.hits = 0
        """Prompts whose adapter was in host memory."""

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, requests: list[Request], name: str, digest: str = "") -> None:
        """Schedule ``requests``, samples of one prompt, with the adapter ``name`` once it is in host memory.

        ``digest``: what its content must have, in hexadecimal; empty for any.

        Raises:
            RequestRefusedError: there is no such adapter (``unknown_adapter``), or the requests can never run.
        """
        adapter = self._names.find(name, busy=self._pipeline.full)
        for request in requests:
            request.adapter_digest = bytes.fromhex(digest)
        queue = self._pipeline.queue
        if adapter.number and not (queue and self._overtaken >= MOST_OVERTAKES):
            self._overtaken += bool(queue)
            self.hits += 1
            self._start(adapter, requests)
        elif adapter.number:
            self._held.append((adapter, requests))
        else:
            self._pipeline.enqueue(adapter)
            adapter.waiting.append(requests)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests that wait. Their adapters are loaded all the same."""
        gone = set(request_ids)
        for adapter in self._pipeline:
            kept = [[each for each in some if each.request_id not in gone] for some in adapter.waiting]
            adapter.waiting = [some for some in kept if some]
        held, self._held = self._held, []
        for adapter, some in held:
            if left := [each for each in some if each.request_id not in gone]:
                self._held.append((adapter, left))

    @property
    def waiting(self) -> bool:
        """Whether :meth:`poll` has anything to do, or will have."""
        return self._pipeline.active or bool(self._held) or self._host.has_leaving

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their adapters."""
        return sum(map(len, self._waiting()))

    @property
    def pixel_bytes(self) -> int:
        """Of the images of these."""
        return sum(map(pixel_bytes, self._waiting()))

    def poll(self) -> list[RequestOutput]:
        """Take what was loaded, schedule who waited for it, and load the next; the outputs of requests that failed."""
        failed: list[RequestOutput] = []
        for adapter in self._pipeline.take_prepared():
            failed += self._prepared(adapter)
        for adapter in self._pipeline.take_read():
            failed += self._read(adapter)
        self._host.drop_leaving()
        began, evicted = self._pipeline.begin()
        for adapter in evicted:
            self._forget_path(adapter)
        if began:
            self._overtaken = 0
        return failed + self._release()

    def wait(self) -> None:
        """Wait a moment for an adapter, as there is nothing else to do."""
        self._pipeline.wait()

    # ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def names(self) -> tuple[str, ...]:
        """Of all adapters that answer requests, in order."""
        return self._names.answering

    @property
    def digests(self) -> tuple[str, ...]:
        """Of their contents, in hexadecimal; empty for those whose weights were not read yet."""
        return self._names.digests

    @property
    def tiers(self) -> tuple[AdapterTier, ...]:
        """Where the weights of each are."""
        return self._names.tiers

    @property
    def capacity(self) -> int:
        """Adapters that host memory has room for."""
        return self._host.capacity

    @property
    def counts(self) -> AdapterCounts:
        """What requests found where, since the start."""
        return AdapterCounts(
            device_hits=self._residency.hits,
            device_loads=self._residency.loads,
            host_hits=self.hits,
            host_loads=self._host.loads,
            host_evictions=self._host.evictions,
            host_load_seconds=self._files.read_seconds,
        )

    def infos(self) -> list[AdapterInfo]:
        """All adapters, with where they are; failed ones with the reason."""
        return self._names.infos()

    def load(self, message: LoadAdapter, reply: Callable[[AdapterReply], None]) -> None:
        """Load an adapter and give it a name; ``reply`` says when that is done, or why it cannot be."""
        self._changes.load(message, reply)

    def unload(self, message: UnloadAdapter) -> AdapterReply:
        """Take an adapter's name away. Requests that have begun go on; with the last of them its memory is free."""
        reply = self._changes.unload(message)
        self._host.drop_leaving()
        return reply

    def load_now(self, name: str, path: str) -> None:
        """Load an adapter of ``--lora_modules`` and keep it in host memory. Raises ``ModelFilesError``."""
        if name in self._names.base_names:
            raise ModelFilesError(f"--lora_modules {name}: the name is the base model's; choose another")
        if self._names.get(name) is not None:
            raise ModelFilesError(f"--lora_modules has two adapters called {name}; rename one")
        if self._host.full:
            raise ModelFilesError(
                f"--lora_modules names more adapters than --max_cpu_loras {self._host.capacity} allows; raise it"
            )
        adapter = Adapter(name, path, pinned=True)
        try:
            self._host.put(adapter, self._files.read_now(adapter))
        except ModelFilesError as error:
            raise ModelFilesError(f"--lora_modules {name}={path}: {error}") from None
        self._names.put(adapter)

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _waiting(self) -> Iterator[list[Request]]:
        """The samples of each prompt that waits."""
        for adapter in self._pipeline:
            yield from adapter.waiting
        for _, requests in self._held:
            yield requests

    def _prepared(self, adapter: Adapter) -> list[RequestOutput]:
        """The files of an adapter were found, or were not."""
        assert adapter.files is not None
        future, adapter.files = adapter.files, None
        if not self._is_wanted(adapter):
            return []
        if (error := future.exception()) is not None:
            return self._failed(adapter, error)
        found = future.result()
        adapter.folder = found.folder
        if adapter.register_only and not adapter.waiting:
            adapter.rank = found.rank
            self._changes.registered(adapter)
        else:
            self._pipeline.enqueue(adapter)
        return []

    def _read(self, adapter: Adapter) -> list[RequestOutput]:
        """An adapter was read, or could not be."""
        assert adapter.weights is not None
        future, adapter.weights = adapter.weights, None
        if not self._is_wanted(adapter):
            self._files.forget(adapter.coming)
            return []
        if (error := future.exception()) is not None:
            return self._failed(adapter, error)
        adapter.folder = adapter.folder or Path(normalized(adapter.path))
        self._changes.loaded(adapter, future.result())
        waiting, adapter.waiting = adapter.waiting, []
        failed: list[RequestOutput] = []
        for requests in waiting:
            failed += self._start_late(adapter, requests)
        return failed

    def _is_wanted(self, adapter: Adapter) -> bool:
        """Whether it still has a name, or is to get one, or requests wait for it."""
        return self._changes.is_current(adapter) or bool(adapter.waiting)

    def _failed(self, adapter: Adapter, error: BaseException) -> list[RequestOutput]:
        if not isinstance(error, ModelFilesError):
            logger.error("adapter %s could not be loaded", adapter.name, exc_info=error)
        text = str(error) if isinstance(error, ModelFilesError) else f"adapter {adapter.name}: {error!r}"
        why = RequestError(message=text, kind="unknown_adapter")
        waiting, adapter.waiting = adapter.waiting, []
        self._changes.failed(adapter, why)
        return [_failed(request, why) for requests in waiting for request in requests]

    def _forget_path(self, adapter: Adapter) -> None:
        """An adapter that has no name but its folder's left host memory."""
        if adapter.by_path and adapter.named:
            self._names.remove(adapter.name)

    def _release(self) -> list[RequestOutput]:
        """Schedule requests that were held for an adapter that has its turn now."""
        failed: list[RequestOutput] = []
        if not self._pipeline.queue or not self._overtaken:
            held, self._held = self._held, []
            for adapter, requests in held:
                if adapter.number:
                    failed += self._start_late(adapter, requests)
                else:  # it made room meanwhile
                    adapter.waiting.append(requests)
                    self._pipeline.enqueue(adapter)
        return failed

    def _start(self, adapter: Adapter, requests: list[Request]) -> None:
        self._host.touch(adapter)
        for request in requests:
            if request.adapter_digest not in (b"", adapter.digest):
                text = f"adapter {adapter.name!r} has other weights here than where the answer began"
                raise RequestRefusedError(RequestError(message=text, kind="adapter_differs"))
            request.adapter, request.adapter_digest = adapter.number, adapter.digest
        self._submit(requests)

    def _start_late(self, adapter: Adapter, requests: list[Request]) -> list[RequestOutput]:
        """The same for requests that have waited; the outputs of those that are refused only now."""
        now = time.monotonic()
        for request in requests:
            request.adapter_seconds = now - request.created
        try:
            self._start(adapter, requests)
        except RequestRefusedError as error:
            return [_failed(request, error.error) for request in requests]
        return []


def _failed(request: Request, error: RequestError) -> RequestOutput:
    return RequestOutput(request_id=request.request_id, finish_reason="abort", error=error)
