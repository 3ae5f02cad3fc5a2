"""Prefix-cache reports to routers: events, snapshots, and the blocks of each prompt, on the real engine.

The model is a small random one; its KV cache holds few blocks, so that some are evicted.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from engine_support.server_process import ServerProcess, running_server, wait_until

from blade_llm.api.generation.kv_blocks import MAX_DIGESTS, blocks_header
from blade_llm.cache.prefix_cache import HashChain, root_digest
from blade_llm.spec.vision.images import ImageSpan
from blade_protocol import headers, paths
from blade_protocol.state import KV_DIGEST_BYTES, EngineEvent, KVSnapshot

WITH_BLOCKS = {headers.KV_BLOCKS: "1"}
TEXT = "the quick brown fox jumps over the lazy dog and " * 8


@pytest.fixture(scope="module", params=["1", "2"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, text_model: Path
) -> Iterator[ServerProcess]:
    """With one API-server process and with two: whichever responds, the first one sends the events."""
    flags = ("--dtype", "float32", "--max_kv_blocks", "80", "--max_model_len", "512", "--api_server_count")
    folder = tmp_path_factory.mktemp("kv")
    with running_server(folder, text_model, *flags, request.param, engine="real") as process:
        yield process


def digests(data: bytes) -> list[bytes]:
    return [data[start : start + KV_DIGEST_BYTES] for start in range(0, len(data), KV_DIGEST_BYTES)]


def stride_and_digests(response: httpx.Response) -> tuple[int, list[bytes]]:
    """Stride and digests of a response's header."""
    stride, _, encoded = response.headers[headers.KV_BLOCKS].partition(":")
    return int(stride), digests(base64.b64decode(encoded))


def snapshot(server: ServerProcess) -> KVSnapshot:
    return msgspec.json.decode(httpx.get(server.internal_url + paths.INTERNAL_KV).content, type=KVSnapshot)


class Follower:
    """Reads ``/internal/events`` in a thread, as a router would: a snapshot once, then nothing but batches."""

    def __init__(self, server: ServerProcess) -> None:
        self.cached: set[bytes] = set()
        self.sequence = -1
        self.removed = 0
        self._server = server
        self._begun = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Follower:
        self._thread.start()
        assert self._begun.wait(10)
        return self

    def __exit__(self, *exception: object) -> None:
        self._over = True

    def _run(self) -> None:
        try:
            self._read()
        except httpx.TransportError:
            assert self._over, "the stream broke"

    def _read(self) -> None:
        with httpx.stream("GET", self._server.internal_url + paths.INTERNAL_EVENTS, timeout=60) as events:
            for line in events.iter_lines():
                if self._over:
                    return
                if line.startswith("data: "):
                    self._take(msgspec.json.decode(line.removeprefix("data: "), type=EngineEvent))

    def _take(self, event: EngineEvent) -> None:
        batch = event.kv
        if self.sequence < 0:
            first = snapshot(self._server)
            assert batch is not None
            assert first.epoch == event.epoch
            assert first.sequence >= batch.sequence
            self.sequence, self.cached = first.sequence, set(digests(first.digests))
            self._begun.set()
        elif batch is not None and batch.sequence > self.sequence:
            assert batch.sequence == self.sequence + 1
            assert not batch.lost
            self.cached |= set(digests(batch.stored))
            self.cached -= set(digests(batch.removed))
            self.removed += len(digests(batch.removed))
            self.sequence = batch.sequence

    def is_exact(self) -> bool:
        now = snapshot(self._server)
        return now.sequence == self.sequence and set(digests(now.digests)) == self.cached


def _chat(text: str) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 2}


def _completion(text: str) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": text, "max_tokens": 2}


def _response(text: str) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": text, "max_output_tokens": 2}


def _message(text: str) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"messages": [{"role": "user", "content": text}], "max_tokens": 2}


@pytest.mark.parametrize("kind", [_chat, _completion, _response, _message])
@pytest.mark.parametrize("stream", [False, True])
def test_a_response_names_the_blocks_that_the_engine_stores(server: ServerProcess, kind: Any, stream: bool) -> None:
    path, body = kind(f"{kind.__name__} {stream}: {TEXT}")
    with Follower(server) as follower:
        response = httpx.post(server.url + path, json={**body, "stream": stream}, headers=WITH_BLOCKS, timeout=60)
        assert response.status_code == 200
        stride, blocks = stride_and_digests(response)
        assert stride == 4
        assert blocks
        wait_until(lambda: set(blocks) <= follower.cached)
        wait_until(follower.is_exact)
        salted = httpx.post(server.url + path, json={**body, "cache_salt": "tenant"}, headers=WITH_BLOCKS, timeout=60)
        others = stride_and_digests(salted)[1]
        assert len(others) == len(blocks)
        assert not set(others) & set(blocks)
        wait_until(lambda: set(others) <= follower.cached)


def test_blocks_are_sent_only_on_request(server: ServerProcess) -> None:
    path, body = _completion(TEXT)
    assert headers.KV_BLOCKS not in httpx.post(server.url + path, json=body, timeout=60).headers
    two = {**body, "prompt": [TEXT, TEXT + "!"]}
    assert headers.KV_BLOCKS not in httpx.post(server.url + path, json=two, headers=WITH_BLOCKS, timeout=60).headers
    refused = httpx.post(server.url + path, json={**body, "temperature": -1}, headers=WITH_BLOCKS, timeout=60)
    assert refused.status_code == 400
    assert headers.KV_BLOCKS not in refused.headers


def test_a_follower_has_exactly_what_the_cache_has(server: ServerProcess) -> None:
    """More prompts than fit, some again, several at once."""
    with Follower(server) as follower:
        for turn in range(12):
            prompts = [f"{turn % 5}-{other}: {TEXT}" for other in range(2)]
            path, body = _completion("")
            threads = [
                threading.Thread(target=server.post, args=(path,), kwargs={**body, "prompt": prompt})
                for prompt in prompts
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        server.wait_idle()
        wait_until(follower.is_exact)
        assert follower.removed > 0
        assert 0 < len(follower.cached) <= 80


def test_a_snapshot_is_of_the_internal_port_only(server: ServerProcess) -> None:
    assert httpx.get(server.url + paths.INTERNAL_KV).status_code == 404
    assert snapshot(server).epoch == server.state()["epoch"]


def test_a_header_has_the_images_of_a_prompt() -> None:
    ids, image = list(range(160)), ImageSpan(70, 40, b"a" * 32, (1, 20, 8))
    _, _, encoded = blocks_header(ids, images=[image]).partition(":")
    chain = HashChain(root_digest(), 16, [image])
    chain.extend(ids, 8)
    assert digests(base64.b64decode(encoded)) == [digest[:KV_DIGEST_BYTES] for digest in chain.digests[3::4]]
    _, _, without = blocks_header(ids).partition(":")
    assert digests(base64.b64decode(without))[0] == digests(base64.b64decode(encoded))[0]
    assert without != encoded


def test_a_header_stays_short_however_long_the_prompt() -> None:
    for tokens in (0, 15, 63, 64, 1_000, 32_768, 200_000):
        ids = list(range(tokens))
        stride, _, encoded = blocks_header(ids, "salt").partition(":")
        found, every = digests(base64.b64decode(encoded)), int(stride)
        chain = HashChain(root_digest(salt="salt"), 16)
        chain.extend(ids, tokens // 16)
        assert len(found) <= MAX_DIGESTS
        assert found == [digest[:KV_DIGEST_BYTES] for digest in chain.digests[every - 1 :: every]]
        assert every == 4 or len(found) > MAX_DIGESTS // 2
