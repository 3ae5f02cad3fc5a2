"""The process that decodes and resizes images, and frames of videos:
``python -m blade_llm.multimodal.worker_process DESCRIPTOR``.

A file may unpack to gigabytes, keep a decoder busy for minutes, or break it. So this process has little memory, opens
no files, and SIGPROF ends it when an image takes too much CPU time. It imports neither torch nor numpy: it starts in a
quarter of a second and takes 27 MB.

It reads and writes messages with a four-byte length, in msgpack; images and pixels themselves are in the memory file
that DESCRIPTOR is, which its parent shares. The first message it reads is the limits; it answers every message with an
empty one when it begins with it, and to a job follows the reply. It exits at end of file.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import resource
import signal
import sys
import time
from typing import Final

import msgspec
from PIL import Image

from blade_llm.multimodal.animations import ANIMATED, AnimatedFile
from blade_llm.multimodal.content import content_digest
from blade_llm.multimodal.decoding import FORMATS, decode
from blade_llm.multimodal.errors import ImageError
from blade_llm.multimodal.worker_messages import LENGTH_BYTES, Animation, Job, OneFrame, Reply, Setup, write_all

_OPEN_FILES: Final = 3
"""The standard streams: what is open already stays so, wherever its number is."""
_NICENESS: Final = 5
"""The tokens of others come first."""
_OUT_OF_MEMORY_SCORE: Final = "1000"
"""In a container without memory the kernel ends this process, and not the engine."""


def process(setup: Setup, descriptor: int, job: Job) -> Reply:
    """Decode and resize, whatever comes."""
    try:
        data = os.pread(descriptor, job.size, 0)
        os.ftruncate(descriptor, 0)
        if isinstance(job.video, OneFrame):
            return _frame(setup, descriptor, data, job.video, job)
        if isinstance(job.video, Animation):
            return _animation(setup, descriptor, data, job.video, job)
        image = decode(data, setup.max_source_pixels, setup.processor.check_size)
        resized = setup.processor.process(image, job.bounds)
        write_all(descriptor, resized.pixels)
        digest = content_digest(*resized)
        return Reply("", len(resized.pixels), digest, resized.grid, resized.shape)
    except ImageError as error:
        return Reply(str(error))
    except MemoryError:
        return Reply("the image needs too much memory to decode: send a smaller one, or PNG or baseline JPEG")
    except Exception as error:  # of a file from anyone: whatever it raises is its fault
        return Reply(f"the image cannot be used: {type(error).__name__}: {error}")


def _frame(setup: Setup, descriptor: int, data: bytes, video: OneFrame, job: Job) -> Reply:
    assert setup.video is not None
    started = time.process_time()
    image = decode(data, setup.max_source_pixels, setup.processor.check_size)
    size = setup.video.size(video.frames, image.height, image.width, job.bounds)
    pixels = setup.video.resize(image, size)
    write_all(descriptor, pixels)
    return Reply("", len(pixels), shape=(1, *size, 3), seconds=time.process_time() - started)


def _animation(setup: Setup, descriptor: int, data: bytes, video: Animation, job: Job) -> Reply:
    assert setup.video is not None
    file = AnimatedFile(data, setup.max_source_pixels, setup.processor.check_size)
    indices = setup.video.sample(file.total, file.rate, video.fps, video.most)
    height, width = setup.video.size(len(indices), file.height, file.width, job.bounds)
    if (pixels := len(indices) * height * width) > video.max_pixels:
        raise ImageError(
            f"the video's {len(indices)} frames of {width} x {height} have {pixels} pixels after they were resized, "
            f"and the limit is {video.max_pixels}: send fewer frames (fps), or less max_pixels"
        )
    start = 0
    for image in file.frames(indices):
        frame = setup.video.resize(image, (height, width))
        write_all(descriptor, frame, start)
        start += len(frame)
    shape = (len(indices), height, width, 3)
    return Reply("", start, shape=shape, indices=tuple(indices), total=file.total, rate=file.rate)


class AddressSpace:
    """Size of this process; it may be asked for when no further file can be opened."""

    def __init__(self) -> None:
        self._descriptor = os.open("/proc/self/statm", os.O_RDONLY)

    def nbytes(self) -> int:
        return int(os.pread(self._descriptor, 100, 0).split()[0]) * resource.getpagesize()


def _load() -> None:
    """What would open files later."""
    Image.init()  # all plugins
    for name in FORMATS:
        encoded = io.BytesIO()
        Image.new("RGB", (32, 32)).save(encoded, name)
        decode(encoded.getvalue(), 1 << 16, lambda height, width: None)
    for name in ANIMATED:
        encoded = io.BytesIO()
        frames = [Image.new("RGB", (32, 32), grey) for grey in ("black", "white")]
        frames[0].save(encoded, name, save_all=True, append_images=frames[1:])
        list(AnimatedFile(encoded.getvalue(), 1 << 16, lambda height, width: None).frames([0, 1]))


def _limit(setup: Setup, size: int) -> None:
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(_OUT_OF_MEMORY_SCORE)
    for limit, value in (
        (resource.RLIMIT_AS, size + setup.memory),
        (resource.RLIMIT_FSIZE, setup.file_bytes),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; our input's end is our end
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    gc.freeze()


def _read_message() -> bytes | None:
    head = sys.stdin.buffer.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    return sys.stdin.buffer.read(int.from_bytes(head, "little"))


def _write_message(payload: bytes = b"") -> None:
    sys.stdout.buffer.write(len(payload).to_bytes(LENGTH_BYTES, "little") + payload)
    sys.stdout.buffer.flush()


def main() -> None:
    descriptor = int(sys.argv[1])
    if (message := _read_message()) is None:
        return
    setup = msgspec.msgpack.decode(message, type=Setup)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    _load()
    space = AddressSpace()
    size = space.nbytes()
    _limit(setup, size)
    _write_message()
    os.dup2(nowhere, sys.stderr.fileno())  # decoders written in C complain there about strangers' files
    os.close(nowhere)
    while (message := _read_message()) is not None:
        job = msgspec.msgpack.decode(message, type=Job)
        _write_message()
        signal.setitimer(signal.ITIMER_PROF, setup.seconds_for(job))
        payload = msgspec.msgpack.encode(process(setup, descriptor, job))
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write_message(payload)
        gc.collect()  # pictures in cycles of references
        if space.nbytes() > size + setup.kept_memory:
            return


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main()
