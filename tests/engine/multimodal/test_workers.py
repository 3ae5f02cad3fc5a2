"""Real worker processes: what strangers' files do to them, and what others notice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from engine_support import image_bombs
from engine_support.image_cases import CASES_OF_KINDS, PROCESSORS, encode, exif, waves
from engine_support.normalise import image_pixels
from PIL import Image

from blade_llm.multimodal import worker as worker_module
from blade_llm.multimodal.decoding import decode
from blade_llm.multimodal.errors import ImageError, ImagesBusyError
from blade_llm.multimodal.options import MIB, ImageOptions
from blade_llm.multimodal.processors import ImageProcessor, QwenProcessor
from blade_llm.multimodal.settings import ImageSettings
from blade_llm.multimodal.worker import Worker, WorkerGoneError
from blade_llm.multimodal.worker_messages import setup
from blade_llm.multimodal.workers import ImageWorkers
from blade_llm.spec.vision.images import ImagePixels

PROCESSOR = QwenProcessor()
PATIENT = ImageOptions(image_timeout=60.0)


@contextlib.asynccontextmanager
async def _pool(options: ImageOptions = PATIENT, processor: ImageProcessor = PROCESSOR) -> AsyncIterator[ImageWorkers]:
    workers = ImageWorkers(processor, options)
    try:
        yield workers
    finally:
        await workers.close()


def _expected(data: bytes, processor: ImageProcessor = PROCESSOR) -> ImagePixels:
    image = decode(data, 1 << 26, processor.check_size)
    return image_pixels(*processor.process(image, processor.own_bounds))


def _pids(workers: ImageWorkers) -> list[int]:
    return [worker.pid for worker in workers._workers if worker.pid is not None]


def _memory(pid: int, name: str) -> int:
    """Bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{name}:")[1].split()[0]) * 1024


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.002)


def _gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def _busy(workers: ImageWorkers, data: bytes) -> tuple[asyncio.Task[ImagePixels], int]:
    """An image that is being decoded, and the process that does it."""
    task = asyncio.create_task(workers.process(data))
    await _until(lambda: bool(_pids(workers)))
    (pid,) = _pids(workers)
    await _until(lambda: _memory(pid, "VmRSS") > 60 * MIB)
    return task, pid


SLOW = image_bombs.slow_png(5000)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("name", PROCESSORS)
def test_pixels_come_back(run: Any, name: str) -> None:
    async def scenario() -> None:
        processor = PROCESSORS[name]
        async with _pool(processor=processor) as workers:
            for data in list(CASES_OF_KINDS.values())[::6]:
                assert await workers.process(data) == _expected(data, processor)
            assert workers.load == (1, 0, 0, 0)

    run(scenario())


async def test_megabytes_come_back() -> None:
    processor = QwenProcessor(max_pixels=12_845_056)
    data = encode(Image.fromarray(waves(300, 400, 3)).resize((4000, 3000)), "BMP")
    async with _pool(ImageOptions(max_image_bytes=40 * MIB), processor) as workers:
        pixels = await workers.process(data)
        assert len(pixels.pixels) > 35_000_000
        assert pixels == _expected(data, processor)
        low = await workers.process(data, ImageSettings("low"))
        assert len(low.pixels) <= 3 * 512 * 512


async def test_nothing_starts_before_the_first_image(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(worker: Worker) -> None:
        raise AssertionError("started")

    monkeypatch.setattr(Worker, "start", start)
    async with _pool() as workers:
        assert workers.load == (0, 0, 0, 0)
        with pytest.raises(ImageError, match="0 bytes"):
            await workers.process(b"")
        with pytest.raises(ImageError, match="the limit is 20971520: compress it"):
            await workers.process(bytes(20 * MIB + 1))
        with pytest.raises(ImageError, match="detail"):
            await workers.process(image_bombs.GOOD, ImageSettings("huge"))
        with pytest.raises(AssertionError, match="started"):
            await workers.process(image_bombs.GOOD)


async def test_bad_images_harm_no_other() -> None:
    """Many at once, of every kind; the processes stay few and small."""
    bad = [
        image_bombs.SVG,
        image_bombs.HTML,
        image_bombs.blank_png(20_000, 20_000),
        image_bombs.webp_header(16_383, 16_383),
        image_bombs.gif_with_frame_beyond(60_000),
        image_bombs.png_with_text(80 << 20),
        image_bombs.tiff_with_strip(1 << 30),
        image_bombs.blank_png(1, 4000),
        encode(Image.new("RGB", (1, 1)), "PNG"),
        *(image_bombs.truncated(kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")),
    ]
    seen: set[int] = set()
    async with _pool() as workers:

        async def one(data: bytes) -> ImagePixels | None:
            try:
                result = await workers.process(data)
            except ImageError:
                result = None
            seen.update(_pids(workers))
            assert workers.load.processes <= workers.options.image_workers
            return result

        results = await asyncio.gather(*(one(data) for each in bad for data in (each, image_bombs.GOOD)))
        assert results[::2] == [None] * len(bad)
        assert results[1::2] == [_expected(image_bombs.GOOD)] * len(bad)
        assert len(seen) <= 2
        for pid in _pids(workers):
            assert _memory(pid, "VmHWM") < 150 * MIB


async def test_a_large_image_dies_of_its_memory_alone() -> None:
    """25 megapixels want 100 MB; the process has 60 MiB, and is as good as new afterwards."""
    limits = msgspec.structs.replace(setup(PROCESSOR, PATIENT), memory=60 * MIB)
    threads = ThreadPoolExecutor(1)
    process = Worker(limits)
    await process.start()
    assert process.pid is not None
    base = _memory(process.pid, "VmSize")
    try:
        for _ in range(2):
            with pytest.raises(ImageError, match="too much memory"):
                await process.run(SLOW, PROCESSOR.own_bounds, threads)
            good = await process.run(image_bombs.GOOD, PROCESSOR.own_bounds, threads)
            assert good == _expected(image_bombs.GOOD)
        assert _memory(process.pid, "VmPeak") <= base + 60 * MIB
    finally:
        process.end()
        await process.ended()
        threads.shutdown()


async def test_a_process_that_keeps_memory_ends() -> None:
    """After its image, so that no other one lacks what decoders leak."""
    limits = msgspec.structs.replace(setup(PROCESSOR, PATIENT), kept_memory=-1)
    threads = ThreadPoolExecutor(1)
    process = Worker(limits)
    await process.start()
    good = await process.run(image_bombs.GOOD, PROCESSOR.own_bounds, threads)
    assert good == _expected(image_bombs.GOOD)
    with pytest.raises(WorkerGoneError):
        await process.run(image_bombs.GOOD, PROCESSOR.own_bounds, threads)
    await process.ended()
    threads.shutdown()


async def test_large_images_leave_no_memory_behind() -> None:
    """The same process decodes them all."""
    exact = encode(Image.new("RGBA", (3000, 3000), (1, 2, 3, 4)), "PNG", exif=exif(6))
    async with _pool() as workers:
        await workers.process(SLOW)
        pids = _pids(workers)
        for data in (exact, encode(Image.new("RGBA", (3000, 3000)), "WEBP"), image_bombs.GOOD):
            await workers.process(data)
        assert _pids(workers) == pids


def test_the_api_server_has_no_decoder() -> None:
    """What it imports to serve images, and to read processor files."""
    program = (
        "import sys\n"
        "import blade_llm.multimodal.processors.reading, blade_llm.multimodal.workers\n"
        "print({'PIL', 'numpy', 'torch'} & set(sys.modules))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    output = subprocess.run([sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True)
    assert output.stdout.strip() == "set()"


async def test_the_limits_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the system, and no secrets, no large libraries, no signs of the server's log."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    async with _pool() as workers:
        await workers.process(image_bombs.GOOD)
        (pid,) = _pids(workers)
        proc = Path(f"/proc/{pid}")
        lines = {line[:25].strip(): line[25:].split() for line in (proc / "limits").read_text().splitlines()}
        limits = setup(PROCESSOR, PATIENT)
        assert limits.memory < int(lines["Max address space"][1]) < limits.memory + 100 * MIB
        assert int(lines["Max file size"][1]) == limits.file_bytes
        assert int(lines["Max open files"][1]) == 3
        assert int(lines["Max core file size"][1]) == 0
        assert (proc / "oom_score_adj").read_text().strip() == "1000"
        names = {item.split(b"=")[0] for item in (proc / "environ").read_bytes().split(b"\0") if item}
        assert names == {b"PYTHONPATH"}
        maps = (proc / "maps").read_text()
        assert "PIL" in maps
        assert "numpy" not in maps
        assert "torch" not in maps
        assert os.readlink(proc / "fd" / "2") == os.devnull


async def test_an_image_that_takes_too_much_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process ends by the signal of its timer; another one takes over."""
    monkeypatch.setattr(worker_module, "_PATIENCE", 600)
    options = ImageOptions(image_timeout=0.1, image_workers=1)
    async with _pool(options) as workers:
        for _ in range(2):
            slow, good = await asyncio.gather(
                workers.process(SLOW), workers.process(image_bombs.GOOD), return_exceptions=True
            )
            assert isinstance(slow, ImageError)
            assert "more than 0.1 s of CPU time" in str(slow)
            assert good == _expected(image_bombs.GOOD)
        assert workers.load == (1, 0, 0, 0)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_image_that_breaks_its_decoder(run: Any) -> None:
    async def scenario() -> None:
        async with _pool(ImageOptions(image_timeout=60.0, image_workers=1)) as workers:
            task, pid = await _busy(workers, SLOW)
            os.kill(pid, signal.SIGSEGV)
            with pytest.raises(ImageError, match="breaks its decoder"):
                await task
            assert workers.load == (0, 0, 0, 0)
            assert await workers.process(image_bombs.GOOD) == _expected(image_bombs.GOOD)

    run(scenario())


async def test_a_process_killed_from_outside_is_no_fault_of_the_image() -> None:
    async with _pool(ImageOptions(image_timeout=60.0, image_workers=1)) as workers:
        task, pid = await _busy(workers, SLOW)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ImagesBusyError, match="was killed"):
            await task


@pytest.mark.parametrize("pause", [0.0, 0.3])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_idle_process_that_is_gone_is_replaced(run: Any, pause: float) -> None:
    """At once, before its end is known, and later."""

    async def scenario() -> None:
        async with _pool() as workers:
            first = await workers.process(image_bombs.GOOD)
            (pid,) = _pids(workers)
            os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(pause)
            assert await workers.process(image_bombs.GOOD) == first
            assert pid not in _pids(workers)

    run(scenario())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_client_that_goes_away_takes_its_work_along(run: Any) -> None:
    async def scenario() -> None:
        async with _pool(ImageOptions(image_timeout=60.0, image_workers=1)) as workers:
            task, pid = await _busy(workers, SLOW)
            waiting = asyncio.create_task(workers.process(SLOW))
            await _until(lambda: workers.load.waiting == 1)
            waiting.cancel()
            task.cancel()
            assert [type(end) for end in await asyncio.gather(task, waiting, return_exceptions=True)] == [
                asyncio.CancelledError
            ] * 2
            assert workers.load == (0, 0, 0, 0)
            await _until(lambda: _gone(pid))
            assert await workers.process(image_bombs.GOOD) == _expected(image_bombs.GOOD)

    run(scenario())


async def test_cancelled_at_any_moment_nothing_leaks() -> None:
    """Neither files nor processes nor the places of others."""
    async with _pool(ImageOptions(image_timeout=60.0, image_workers=2)) as workers:
        await workers.process(image_bombs.GOOD)
        files = len(os.listdir("/proc/self/fd"))
        seen = set(_pids(workers))
        for turn in range(12):
            task = asyncio.create_task(workers.process(image_bombs.GOOD))
            await asyncio.sleep(turn * 0.0004)
            seen.update(_pids(workers))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            seen.update(_pids(workers))
        del task  # its exception knows its worker
        assert await workers.process(image_bombs.GOOD) == _expected(image_bombs.GOOD)
        assert workers.load[1:] == (0, 0, 0)
        alive = set(_pids(workers))
        await _until(lambda: all(map(_gone, seen - alive)))
        await _until(lambda: len(os.listdir("/proc/self/fd")) <= files + 4 * (len(alive) - 1))


async def test_no_more_than_so_many_wait() -> None:
    options = ImageOptions(image_timeout=60.0, image_workers=1, max_waiting_images=1)
    async with _pool(options) as workers:
        task, _ = await _busy(workers, SLOW)
        waiting = asyncio.create_task(workers.process(image_bombs.GOOD))
        await _until(lambda: workers.load.waiting == 1)
        with pytest.raises(ImagesBusyError, match="1 other images wait"):
            await workers.process(image_bombs.GOOD)
        assert (await task).grid
        assert await waiting == _expected(image_bombs.GOOD)
        assert await workers.process(image_bombs.GOOD) == await waiting


async def test_no_more_than_so_many_bytes_wait() -> None:
    size = len(SLOW)
    options = ImageOptions(
        image_timeout=60.0, image_workers=1, max_image_bytes=size, max_waiting_bytes=size + len(image_bombs.GOOD)
    )
    async with _pool(options) as workers:
        task, _ = await _busy(workers, SLOW)
        with pytest.raises(ImagesBusyError, match="MiB wait"):
            await workers.process(SLOW)
        assert await workers.process(image_bombs.GOOD) == _expected(image_bombs.GOOD)
        await task
        assert workers.load.bytes_in_flight == 0


async def test_idle_processes_end() -> None:
    async with _pool(ImageOptions(image_worker_idle_seconds=0.05)) as workers:
        await asyncio.gather(*(workers.process(image_bombs.GOOD) for _ in range(4)))
        pids = _pids(workers)
        await _until(lambda: workers.load.processes == 0 and all(map(_gone, pids)))
        assert await workers.process(image_bombs.GOOD) == _expected(image_bombs.GOOD)


async def test_close_ends_everything() -> None:
    workers = ImageWorkers(PROCESSOR, ImageOptions(image_timeout=60.0, image_workers=1))
    task, pid = await _busy(workers, SLOW)
    waiting = asyncio.create_task(workers.process(image_bombs.GOOD))
    await _until(lambda: workers.load.waiting == 1)
    await workers.close()
    for end in await asyncio.gather(task, waiting, return_exceptions=True):
        assert isinstance(end, ImagesBusyError)
    await _until(lambda: _gone(pid))
    with pytest.raises(ImagesBusyError, match="ending"):
        await workers.process(image_bombs.GOOD)


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false"])
async def test_a_process_that_does_not_start(monkeypatch: pytest.MonkeyPatch, python: str) -> None:
    monkeypatch.setattr(sys, "executable", python)
    async with _pool() as workers:
        with pytest.raises(ImagesBusyError, match="not start"):
            await workers.process(image_bombs.GOOD)
        assert workers.load == (0, 0, 0, 0)


async def test_pixels_that_are_too_few_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that an image has broken may say anything."""
    monkeypatch.setattr(worker_module.SharedFile, "read", lambda file, size: bytes(size - 1))
    async with _pool() as workers:
        with pytest.raises(ImageError, match="breaks its decoder"):
            await workers.process(image_bombs.GOOD)
        assert workers.load == (0, 0, 0, 0)


async def test_a_process_that_never_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped: it takes no CPU time, so our own clock ends it."""
    monkeypatch.setattr(worker_module, "_PATIENCE", 1)
    async with _pool(ImageOptions(image_timeout=4.0)) as workers:
        await workers.process(image_bombs.GOOD)
        task, pid = await _busy(workers, SLOW)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ImagesBusyError, match="not decoded in time"):
            await task
        await _until(lambda: _gone(pid))


async def test_a_process_ends_with_its_server() -> None:
    program = (
        "import asyncio, os\n"
        "from engine_support import image_bombs\n"
        "from blade_llm.multimodal.options import ImageOptions\n"
        "from blade_llm.multimodal.processors import QwenProcessor\n"
        "from blade_llm.multimodal.workers import ImageWorkers\n"
        "async def main():\n"
        "    workers = ImageWorkers(QwenProcessor(), ImageOptions())\n"
        "    await workers.process(image_bombs.GOOD)\n"
        "    print([worker.pid for worker in workers._workers][0], flush=True)\n"
        "    os._exit(1)\n"
        "asyncio.run(main())\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env=env
    )
    output, _ = await server.communicate()
    await _until(lambda: _gone(int(output)))
