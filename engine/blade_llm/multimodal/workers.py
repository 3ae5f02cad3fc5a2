"""The pool of processes that decode and resize images: bounded in processes, waiting images and their bytes.

A worker takes 27 MB while idle and up to 18 bytes a pixel of the largest file allowed while it decodes. What an image
does to its worker, other images do not notice: the next one that needs a process gets a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from blade_llm.multimodal.errors import ImageError, ImagesBusyError
from blade_llm.multimodal.options import MIB, ImageOptions
from blade_llm.multimodal.processors import ImageProcessor
from blade_llm.multimodal.processors.video import QwenVideo
from blade_llm.multimodal.settings import ImageSettings, PixelBounds
from blade_llm.multimodal.worker import Frames, Worker, WorkerGoneError
from blade_llm.multimodal.worker_messages import Animation, OneFrame, setup
from blade_llm.spec.vision.images import ImagePixels

_ENDING: Final = "the server is ending"
_Result = TypeVar("_Result")


class WorkersLoad(NamedTuple):
    """What a pool does at this moment."""

    processes: int
    working: int
    waiting: int
    bytes_in_flight: int
    """Of the files that wait or are being decoded."""


class ImageWorkers:
    """Use within one running event loop. Nothing is started before the first image."""

    def __init__(self, processor: ImageProcessor, options: ImageOptions, video: QwenVideo | None = None) -> None:
        """``video``: how videos are read; None: there are none."""
        self.processor = processor
        self.video = video
        self.options = options
        self._setup = setup(processor, options, video)
        self._free = asyncio.Semaphore(options.image_workers)
        self._threads = ThreadPoolExecutor(options.image_workers, "image")
        self._workers: set[Worker] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._idle: dict[Worker, asyncio.TimerHandle] = {}
        self._working = 0
        self._waiting = 0
        self._bytes = 0
        self._closed = False

    async def process(self, data: bytes, settings: ImageSettings | None = None) -> ImagePixels:
        """Decode and resize the file ``data``. Raises :class:`ImageError` and :class:`ImagesBusyError`. Cancelling it
        ends the work at once."""
        settings = settings or ImageSettings()
        bounds = settings.bounds(self.processor.own_bounds, self.options)
        return await self._in_turn(data, lambda worker: worker.run(data, bounds, self._threads))

    async def process_video(self, data: bytes, bounds: PixelBounds, video: OneFrame | Animation) -> Frames:
        """As :meth:`process`, of a file that is a video or a frame of one."""
        return await self._in_turn(data, lambda worker: worker.run_video(data, bounds, video, self._threads))

    async def for_each(self, indices: Iterable[int], process: Callable[[int], Awaitable[None]]) -> None:
        """``process`` each of a request's files, no more of them at a time than there are processes, so that a request
        with many delays the others by one turn each.

        The first error ends the others' work, and is raised; of several an :class:`ImageError`, if there is one.
        """
        turns = asyncio.Semaphore(self.options.image_workers)

        async def process_in_turn(index: int) -> None:
            async with turns:
                await process(index)

        try:
            async with asyncio.TaskGroup() as group:
                for index in indices:
                    group.create_task(process_in_turn(index))
        except* Exception as errors:
            failure = min(errors.exceptions, key=lambda error: not isinstance(error, ImageError))
        else:
            return
        raise failure

    async def _in_turn(self, data: bytes, work: Callable[[Worker], Awaitable[_Result]]) -> _Result:
        if not data:
            raise ImageError("the image is empty: it has 0 bytes")
        if len(data) > self.options.max_image_bytes:
            raise ImageError(
                f"the image has {len(data)} bytes, and the limit is {self.options.max_image_bytes}: "
                "compress it, or send a smaller one"
            )
        async with self._slot(len(data)):
            try:
                return await self._process(work)
            except RuntimeError:
                self._check_open()  # its threads end with it
                raise

    @property
    def load(self) -> WorkersLoad:
        processes = sum(worker.alive for worker in self._workers)
        return WorkersLoad(processes, self._working, self._waiting, self._bytes)

    async def close(self) -> None:
        """End the processes; images that are being decoded fail with :class:`ImagesBusyError`, and so do later ones."""
        self._closed = True
        for timer in self._idle.values():
            timer.cancel()
        self._idle.clear()
        for worker in list(self._workers):
            self._end(worker)
        await asyncio.gather(*self._ending)
        self._threads.shutdown(wait=False)

    @contextlib.asynccontextmanager
    async def _slot(self, size: int) -> AsyncIterator[None]:
        """The right to one of the processes. Raises :class:`ImagesBusyError`."""
        if self._free.locked() and self._waiting >= self.options.max_waiting_images:
            raise ImagesBusyError(f"{self._waiting} other images wait to be decoded; try again later")
        if self._bytes + size > self.options.max_waiting_bytes:
            raise ImagesBusyError(
                f"other images of {self._bytes // MIB} MiB wait or are being decoded; try again later"
            )
        self._bytes += size
        try:
            self._waiting += 1
            try:
                await self._free.acquire()
            finally:
                self._waiting -= 1
            self._working += 1
            try:
                yield
            finally:
                self._working -= 1
                self._free.release()
        finally:
            self._bytes -= size

    async def _process(self, work: Callable[[Worker], Awaitable[_Result]]) -> _Result:
        while worker := self._take():
            with contextlib.suppress(WorkerGoneError):  # ended while it was idle; another one may have as well
                return await self._run(worker, work)
        self._check_open()
        worker = Worker(self._setup)
        self._workers.add(worker)
        try:
            await worker.start()
        except BaseException:
            self._end(worker)
            raise
        try:
            return await self._run(worker, work)
        except WorkerGoneError:
            raise ImagesBusyError("the process that decodes images ended; try again later") from None

    async def _run(self, worker: Worker, work: Callable[[Worker], Awaitable[_Result]]) -> _Result:
        usable = False
        try:
            self._check_open()
            found = await work(worker)
            usable = True
        except ImageError:
            usable = worker.alive
            raise
        finally:  # also when cancelled: a reply nobody read would be the next image's
            if usable and not self._closed:
                self._put_back(worker)
            else:
                self._end(worker)
        return found

    def _check_open(self) -> None:
        if self._closed:
            raise ImagesBusyError(_ENDING)

    def _take(self) -> Worker | None:
        """An idle worker that is alive; the one used last, so that the others may end."""
        while self._idle:
            worker, timer = self._idle.popitem()
            timer.cancel()
            if worker.alive:
                return worker
            self._end(worker)
        return None

    def _put_back(self, worker: Worker) -> None:
        loop = asyncio.get_running_loop()
        self._idle[worker] = loop.call_later(self.options.image_worker_idle_seconds, self._expire, worker)

    def _expire(self, worker: Worker) -> None:
        del self._idle[worker]
        self._end(worker)

    def _end(self, worker: Worker) -> None:
        self._workers.discard(worker)
        worker.end()
        task = asyncio.get_running_loop().create_task(worker.ended())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
