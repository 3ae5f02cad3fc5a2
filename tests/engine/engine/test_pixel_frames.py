"""Pixels on their way from an API server to the engine, and until when each side has them."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from engine_support.adapter_core import Disk
from engine_support.fake_core import core_of, run
from engine_support.fake_grammar import FakeGrammars
from engine_support.fake_runner import FakeRunner
from engine_support.images import IMAGE_TOKEN, SPEC, TOKEN_BYTES

from blade_llm.config import EngineConfig
from blade_llm.engine import client as clients
from blade_llm.engine.client import EngineClient, Generation
from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.engine.messages import GenerateRequest
from blade_llm.engine.pixel_frames import headers_of, join
from blade_llm.engine.process import EngineProcess
from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.images.encoding import ImageEncoding
from blade_llm.scheduling.images.limits import EncoderLimits
from blade_llm.scheduling.request import RequestRefusedError
from blade_llm.spec.vision.images import ImagePixels, ImageSpan

HEIGHT, WIDTH = 256, 128
NBYTES = 3 * HEIGHT * WIDTH
"""Enough for a frame that is sent without a copy."""
WIDE = replace(SPEC, patch_size=64)


def request(name: str, seed: int = 0, **fields: Any) -> GenerateRequest:
    """One whose image is the same for the same ``seed``."""
    digest, grid = bytes([seed] * 32), (1, HEIGHT // 64, WIDTH // 64)
    pixels = ImagePixels(digest, grid, (1, HEIGHT, WIDTH, 3), bytes([seed]) * NBYTES)
    count = WIDE.count(grid)
    values = {"sampling": SamplingParams(max_tokens=3, temperature=0, ignore_eos=True, seed=1), **fields}
    return GenerateRequest(
        request_id=name,
        prompt_token_ids=[*[IMAGE_TOKEN] * count, 7, 8],
        images=[ImageSpan(0, count, digest, grid)],
        pixels=[pixels],
        **values,
    )


class Server:
    """An API server's connection and an engine process that is turned by hand, with its fake runner."""

    def __init__(self, folder: Path, pixel_bytes: int) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.set_hwm(0)
        self._socket.bind(f"ipc://{folder / 'engine'}")
        self.runner = FakeRunner(num_blocks=32, max_num_seqs=2, max_model_len=120)
        self.core = core_with(self.runner, pixel_bytes)
        self.frames: list[weakref.ref[zmq.Frame]] = []
        """Of the pixels that were received."""
        self._pipe = os.pipe()
        self._process = EngineProcess(self.core, self._socket, self._pipe[0])
        self.client = EngineClient(f"ipc://{folder / 'engine'}")
        self._receives = self._socket.recv_multipart
        self._socket.recv_multipart = self._received  # type: ignore[method-assign, assignment]

    def _received(self, flags: int, *, copy: bool) -> list[zmq.Frame]:
        frames: list[zmq.Frame] = self._receives(flags, copy=copy)  # type: ignore[assignment]
        assert len(frames[1]) < 4096, "pixels in the message itself"
        self.frames += map(weakref.ref, frames[2:])
        return frames

    async def turn_until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                if self.core.has_work or self._socket.poll(0):
                    assert self._process.turn()
                self.runner.plans.clear()  # a record for tests, which would keep pixels
                await asyncio.sleep(0)

    async def receive(self, count: int) -> None:
        """Turn for messages alone, until ``count`` images have come: no request has more steps than that."""
        async with asyncio.timeout(20):
            while len(self.frames) < count:
                if self._socket.poll(0):
                    assert self._process.turn()
                await asyncio.sleep(0)

    @property
    def num_alive(self) -> int:
        """Images whose memory is still there."""
        return sum(frame() is not None for frame in self.frames)

    def close(self) -> None:
        self.client.close()
        self._context.destroy(linger=0)
        for each in self._pipe:
            os.close(each)


def core_with(runner: FakeRunner, pixel_bytes: int, **fields: Any) -> EngineCore:
    limits = EncoderLimits(spec=WIDE, cache_bytes=64 * TOKEN_BYTES, element_bytes=4, pixel_bytes=pixel_bytes)
    runner.tower.spec = WIDE
    images = ImageEncoding(limits, runner.max_num_seqs)
    info = EngineInfo(
        model="fake", max_model_len=runner.max_model_len, device="cpu", dtype="float32", vocab_size=runner.vocab_size
    )
    sizes: dict[str, Any] = {"max_num_seqs": runner.max_num_seqs, "max_model_len": runner.max_model_len}
    return core_of(runner, num_blocks=runner.num_blocks, images=images, info=info, **sizes, **fields)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path, pixel_bytes=3 * NBYTES)
    yield server
    server.close()


def ended(generation: Generation) -> bool:
    return any(output.finish_reason is not None for _, output in generation._outputs)


def error_of(generation: Generation) -> tuple[str, str]:
    (error,) = [output.error for _, output in generation._outputs if output.error is not None]
    return error.kind, error.message


async def test_pixels_arrive_and_go_with_their_request(server: Server) -> None:
    generation = server.client.submit([request("a", 1)])
    await server.turn_until(lambda: server.frames)
    frame = server.frames[0]()
    assert frame is not None
    assert frame.bytes == b"\1" * NBYTES
    del frame
    await server.turn_until(lambda: ended(generation))
    assert server.num_alive == 0
    assert len(generation._outputs) == 3


async def test_pixels_of_aborted_and_of_refused_requests_are_free_at_once(server: Server) -> None:
    sampling = SamplingParams(max_tokens=80, temperature=0, ignore_eos=True, seed=1)
    running = [server.client.submit([request(name, seed, sampling=sampling)]) for seed, name in enumerate("abc")]
    refused = server.client.submit([request("d", 9)])
    await server.receive(4)
    await server.turn_until(lambda: ended(refused))
    assert error_of(refused) == (
        "overloaded",
        f"busy: images of {3 * NBYTES} bytes are waiting, no more may; try again in a moment",
    )
    assert len(server.frames) == 4
    assert server.frames[3]() is None
    running[2].close()  # it waits for a slot
    await server.turn_until(lambda: server.frames[2]() is None)
    for generation in running[:2]:
        generation.close()
    await server.turn_until(lambda: server.num_alive == 0)
    await server.turn_until(lambda: not server.core.has_work)
    assert not server.core.scheduler.images.pixel_bytes  # type: ignore[union-attr]


async def test_equal_images_of_two_requests_are_kept_once(server: Server) -> None:
    for name in "ab":
        server.client.submit([request(name, 1)])
    await server.turn_until(lambda: len(server.frames) == 2)
    assert server.num_alive == 1


async def test_pixels_that_the_engine_has_not_taken_are_bounded(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MAX_BYTES_ON_WAY", 2 * NBYTES)
    first = [server.client.submit([request(name, seed)]) for seed, name in enumerate("ab")]
    refused = server.client.submit([request("c", 5), request("d", 6)])
    text = server.client.submit([msgspec.structs.replace(request("e"), images=[], pixels=[])])
    assert server.client.num_open == 3
    assert [index for index, _ in await refused.get()] == [0, 1]
    await server.turn_until(lambda: all(map(ended, [*first, text])))
    assert len(server.frames) == 2
    later = server.client.submit([request("f", 5)])
    await server.turn_until(lambda: ended(later))
    assert not any(output.error for _, output in later._outputs)


async def test_the_refusal_says_how_many_bytes_are_on_their_way(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MAX_BYTES_ON_WAY", NBYTES)
    server.client.submit([request("a", 1)])
    refused = server.client.submit([request("b", 2)])
    await asyncio.sleep(0)
    kind, message = error_of(refused)
    assert (kind, f"images of {NBYTES} bytes are on their way" in message) == ("overloaded", True)


def test_pixels_of_requests_that_wait_for_a_grammar_count() -> None:
    grammars = FakeGrammars(late=True)
    core = core_with(FakeRunner(), 2 * NBYTES, grammars=grammars)
    guided = SamplingParams(max_tokens=3, temperature=0, seed=1, grammar_spec=GrammarSpec("json", "{}"))
    core.add(request("a", 1, sampling=guided, sibling_ids=["a2"]))
    core.add(request("b", 2))
    for sampling in (guided, SamplingParams()):
        with pytest.raises(RequestRefusedError, match=f"images of {2 * NBYTES} bytes are waiting"):
            core.add(request("c", 3, sampling=sampling))
    core.abort(["a", "a2"])
    core.add(request("c", 3, sampling=guided))


def test_pixels_of_requests_that_wait_for_an_adapter_count(tmp_path: Path) -> None:
    (tmp_path / "slow").mkdir()
    runner, disk = FakeRunner(), Disk()
    core = core_with(runner, 2 * NBYTES, max_adapters=1)
    config = EngineConfig(
        model="", served_names=("tiny",), enable_lora=True, max_loras=1, lora_allowed_roots=(str(tmp_path),)
    )
    core.serve_adapters(config, disk, {})
    disk.open.clear()
    for seed, name in enumerate("ab"):
        core.add(request(name, seed, adapter=str(tmp_path / "slow")))
    with pytest.raises(RequestRefusedError, match=f"images of {2 * NBYTES} bytes are waiting"):
        core.add(request("c", 3))
    core.abort(["b"])
    core.add(request("c", 3))
    disk.open.set()
    assert run(core).keys() == {"a", "c"}


def test_frames_of_another_number_are_refused() -> None:
    images = request("a").pixels
    headers = headers_of(images)
    assert [len(each.pixels) for each in (*headers, *images)] == [0, NBYTES]
    assert join(headers, [zmq.Frame(images[0].pixels)]) == images
    with pytest.raises(ValueError, match="shorter"):
        join(headers, [])
