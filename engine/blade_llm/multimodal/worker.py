"""One worker process, as the API server sees it; see :mod:`worker_process`."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from concurrent.futures import Executor
from typing import Final, NamedTuple

import msgspec

from blade_llm.multimodal.errors import ImageError, ImagesBusyError
from blade_llm.multimodal.settings import PixelBounds
from blade_llm.multimodal.worker_messages import Animation, Job, OneFrame, Reply, Setup, write_all
from blade_llm.piped_process import BROKEN, PipedProcess
from blade_llm.spec.vision.images import ImagePixels

_START_SECONDS: Final = 60.0
_EXIT_SECONDS: Final = 5.0
_PATIENCE: Final = 8
"""Times the limit of CPU time that an image may take altogether, on a machine that has other things to do."""
_MAX_REPLY: Final = 64 * 1024
_BREAKS: Final = "the image breaks its decoder: save it anew, as PNG or JPEG"


class WorkerGoneError(Exception):
    """A worker that ended before it began with the image: no image's fault."""


class Frames(NamedTuple):
    """Frames of a video, resized."""

    shape: tuple[int, int, int, int]
    """Frames, height, width, 3."""
    pixels: bytes
    """uint8, C order."""
    indices: tuple[int, ...] = ()
    """Of those that were taken of an animation."""
    total: int = 0
    """Frames that it has."""
    rate: float = 0.0
    """So many of them are a second."""
    seconds: float = 0.0
    """CPU time that a single one took."""


class SharedFile:
    """Memory that a worker and we see as a file. Images and pixels go through it and not through a pipe: system calls
    copy their megabytes without the interpreter's lock, in a thread, so that the event loop never waits (38 MB through
    a pipe took 60 ms of its thread's CPU time, this way 2 to 20). It is closed with its last reference, which a thread
    may have."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("image")

    def write(self, data: bytes) -> None:
        os.ftruncate(self.descriptor, 0)
        write_all(self.descriptor, data)

    def read(self, size: int) -> bytes:
        """And free the memory."""
        data = os.pread(self.descriptor, size, 0)
        os.ftruncate(self.descriptor, 0)
        return data

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


class Worker:
    """Works on one image at a time. Whoever cancels :meth:`start` or :meth:`run`, or gets an error other than
    :class:`ImageError` from them, must :meth:`end` it."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._file: SharedFile | None = None
        self._process: PipedProcess | None = None
        self._killed = False

    async def start(self) -> None:
        """Raises :class:`ImagesBusyError`: the machine has no room for a process, most likely."""
        try:
            self._file = SharedFile()
            self._process = await PipedProcess.start(
                "blade_llm.multimodal.worker_process",
                str(self._file.descriptor),
                limit=_MAX_REPLY,
                pass_fds=(self._file.descriptor,),
            )
        except OSError as error:
            raise ImagesBusyError(f"the process that decodes images does not start: {error}") from None
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._write(self._setup)
                await self._read()
        except (TimeoutError, *BROKEN):
            raise ImagesBusyError("the process that decodes images does not start") from None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive and not self._killed

    async def run(self, data: bytes, bounds: PixelBounds, threads: Executor) -> ImagePixels:
        """Raises :class:`ImageError`, :class:`WorkerGoneError` and :class:`ImagesBusyError`. After an
        :class:`ImageError` the worker may be gone."""
        reply, pixels = await self._exchange(data, Job(len(data), bounds), threads)
        return ImagePixels(reply.digest, reply.grid, reply.shape, pixels)

    async def run_video(
        self, data: bytes, bounds: PixelBounds, video: OneFrame | Animation, threads: Executor
    ) -> Frames:
        """As :meth:`run`, of a file that is a video or a frame of one."""
        reply, pixels = await self._exchange(data, Job(len(data), bounds, video), threads)
        return Frames(reply.shape, pixels, reply.indices, reply.total, reply.rate, reply.seconds)

    async def _exchange(self, data: bytes, job: Job, threads: Executor) -> tuple[Reply, bytes]:
        seconds = self._setup.seconds_for(job)
        loop = asyncio.get_running_loop()
        assert self._file is not None
        try:
            await loop.run_in_executor(threads, self._file.write, data)
        except OSError as error:
            raise ImagesBusyError(f"there is no memory for an image: {error}") from None
        try:
            await self._write(job)
            await self._read()
        except BROKEN:
            raise WorkerGoneError from None
        try:
            async with asyncio.timeout(seconds * _PATIENCE):
                reply = msgspec.msgpack.decode(await self._read(), type=Reply)
        except TimeoutError:
            self.end()
            raise ImagesBusyError("an image was not decoded in time on a busy machine; try again later") from None
        except (*BROKEN, msgspec.DecodeError):
            raise await self._why_ended(seconds) from None
        if reply.error:
            raise ImageError(reply.error)
        pixels = await loop.run_in_executor(threads, self._file.read, reply.size)
        if len(pixels) != math.prod(reply.shape):  # a broken process says anything
            self.end()
            raise ImageError(_BREAKS)
        return reply, pixels

    async def _why_ended(self, seconds: float) -> ImageError | ImagesBusyError:
        assert self._process is not None
        code = await self._process.exit_code(_EXIT_SECONDS)
        self.end()
        if code == -signal.SIGPROF:
            return ImageError(f"the image takes more than {seconds:g} s of CPU time to decode: send a smaller one")
        if code == -signal.SIGKILL:  # from outside, as by a machine without memory
            return ImagesBusyError("the process that decoded the image was killed; try again later")
        return ImageError(_BREAKS)

    async def _write(self, message: Setup | Job) -> None:
        assert self._process is not None
        await self._process.write(msgspec.msgpack.encode(message))

    async def _read(self) -> bytes:
        assert self._process is not None
        return await self._process.read()

    def end(self) -> None:
        """At once."""
        self._killed = True
        if self._process is not None:
            self._process.kill()

    async def ended(self) -> None:
        """Wait until the process and its pipes are gone."""
        if self._process is not None:
            await self._process.ended()
