"""KV events of vLLM and SGLang: msgpack batches over ZeroMQ, each with a sequence number.

Their block hashes are over token ids, which a router without a tokenizer does not have. So these events do not say
which part of a prompt is cached; they correct the approximate index: how much fits into the engine's cache before
something is evicted, and when all of it was cleared.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from blade_router.endpoints.endpoint import Endpoint

logger = logging.getLogger("blade_router.engines")

_SEQUENCE_BYTES: Final = 8
_FIELDS: Final = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}
"""Field order of older versions, which send arrays after the name; newer ones send maps, the name as ``type``."""
_ON_DEVICE: Final = (None, "GPU")

_decode = msgspec.msgpack.Decoder().decode


class KvEvent(NamedTuple):
    kind: str
    hashes: list[Hashable]
    block_size: int


def events_of(payload: bytes) -> Iterator[KvEvent]:
    """The events of a batch that concern the device's cache; unknown kinds and fields are skipped.

    Raises:
        ValueError: malformed batch.
    """
    batch = _decode(payload)
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        raise ValueError("not a batch of KV events")
    for event in batch[1]:
        fields = _fields(event)
        kind = fields.get("type")
        hashes, size = fields.get("block_hashes") or [], fields.get("block_size") or 0
        if kind not in _FIELDS or not isinstance(hashes, list) or not isinstance(size, int):
            continue
        # A hybrid model reports the same tokens for several layer groups; the first stands for all.
        if fields.get("medium") in _ON_DEVICE and not fields.get("group_idx"):
            yield KvEvent(kind, hashes, size)


def _fields(event: Any) -> dict[str, Any]:
    if isinstance(event, dict):
        return event
    if not isinstance(event, list) or not event or not isinstance(event[0], str):
        return {}
    return {"type": event[0], **dict(zip(_FIELDS.get(event[0], ()), event[1:], strict=False))}


class CachedBlocks:
    """The blocks in one engine's prefix cache by its events, and the most there were at an eviction."""

    def __init__(self) -> None:
        self.tokens = 0
        """Capacity of the cache; 0 until something was evicted."""
        self._hashes: set[Hashable] = set()
        self._block_size = 0
        self._next: int | None = None

    def __len__(self) -> int:
        return len(self._hashes)

    def apply(self, sequence: int, payload: bytes) -> bool:
        """Apply one batch. True: all that was known of the cache is void (cleared, restarted, or a batch lost).

        Raises:
            ValueError: malformed batch; it counts as lost.
        """
        void = self._next is not None and sequence != self._next
        if void:
            if sequence == 0:  # restarted, perhaps with another size
                self.tokens = 0
            self._hashes.clear()
        for kind, hashes, block_size in events_of(payload):
            if kind == "BlockStored":
                self._block_size = block_size
                self._hashes.update(hashes)
            elif kind == "BlockRemoved":
                self.tokens = max(self.tokens, len(self._hashes) * self._block_size)
                self._hashes.difference_update(hashes)
            else:
                void = True
                self._hashes.clear()
        self._next = sequence + 1
        return void


class KvEventSubscriber:
    """Subscribes to the KV events of one endpoint."""

    def __init__(self, endpoint: Endpoint, cleared: Callable[[Endpoint], None]) -> None:
        self._endpoint = endpoint
        self._cleared = cleared
        self.blocks = CachedBlocks()

    async def run(self) -> None:
        """Apply events until cancelled. ZeroMQ connects and reconnects by itself."""
        try:
            import zmq
            import zmq.asyncio
        except ImportError:
            logger.warning("kv_events of endpoint %s need pyzmq: pip install pyzmq", self._endpoint.name)
            return
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.SUB)
        try:
            socket.linger = 0
            socket.subscribe(b"")
            socket.connect(self._endpoint.config.kv_events)
            while True:
                self.apply(await socket.recv_multipart())
                await asyncio.sleep(0)  # receiving a batch that is there already does not yield
        except zmq.ZMQError as error:
            logger.warning(
                "kv_events of endpoint %s: %s: %s", self._endpoint.name, self._endpoint.config.kv_events, error
            )
        finally:
            context.destroy(linger=0)

    def apply(self, frames: list[bytes]) -> None:
        """Apply one message: topic, sequence number, batch. A malformed one is a gap."""
        endpoint = self._endpoint
        if len(frames) != 3 or len(frames[1]) != _SEQUENCE_BYTES:
            return
        try:
            void = self.blocks.apply(int.from_bytes(frames[1], "big"), frames[2])
        except (ValueError, TypeError) as error:  # TypeError: a hash that is neither a number nor bytes
            logger.debug("kv_events of endpoint %s: %s", endpoint.name, error)
            return
        if void:
            self._cleared(endpoint)
        if self.blocks.tokens:
            endpoint.report.set_cache_tokens(self.blocks.tokens)
