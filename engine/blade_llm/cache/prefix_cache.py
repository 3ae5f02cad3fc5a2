"""The keys of the prefix cache: digests of what KV blocks contain.

What attention stores for a token depends on all tokens before it, so a block's digest is a hash chain: sha256 over the
digest of the block before it and its own token ids. The chain's root covers what else all values depend on (adapter
weights) and a salt that keeps tenants apart. A block that overlaps images of the prompt has their digests and places in
its own: what stands before an image is shared by prompts with any image there, and the image itself, and what follows
it, by those with the same one. The digests are equal in every process and on every machine.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Final

from blade_llm.spec.vision.images import ImageSpan

_PLACE: Final = struct.Struct("<II").pack


def root_digest(*, adapter: bytes = b"", salt: str = "") -> bytes:
    """The 32-byte start of a chain. ``adapter`` is a content digest, empty for none."""
    # Lengths keep ("ab", "c") and ("a", "bc") apart. The second field is of no use any more, but in the digests that
    # others know.
    fields = (adapter, b"", salt.encode())
    return sha256(b"".join(len(field).to_bytes(8, "little") + field for field in fields)).digest()


class HashChain:
    """The digests of one sequence's full blocks, computed once each as the sequence grows."""

    __slots__ = ("_ends", "_images", "_pack", "_size", "digests", "root")

    def __init__(self, root: bytes, block_size: int, images: Sequence[ImageSpan] = ()) -> None:
        """``images``: those of the sequence, sorted by their starts, none over another."""
        self.root = root
        self._images = images
        self._ends = [image.end for image in images]
        self.digests: list[bytes] = []
        self._size = block_size
        self._pack = struct.Struct(f"<{block_size}I").pack

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Make sure that the first ``num_blocks`` blocks of ``token_ids`` have digests.

        ``token_ids`` starts with the tokens hashed before and holds at least ``num_blocks`` full blocks.
        """
        for index in range(len(self.digests), num_blocks):
            tokens = token_ids[index * self._size : (index + 1) * self._size]
            content = self.parent(index) + self._pack(*tokens)
            if self._images:
                content += b"".join(self._places(index * self._size))
            self.digests.append(sha256(content).digest())

    def parent(self, index: int) -> bytes:
        """The digest that block ``index`` is chained to."""
        return self.digests[index - 1] if index else self.root

    def _places(self, start: int) -> Iterator[bytes]:
        """Of each image that overlaps the block from position ``start`` on: its digest, the offset of the block's first
        image position in the image, and that of the position in the block."""
        for index in range(bisect_right(self._ends, start), len(self._images)):
            image = self._images[index]
            offset = image.start - start
            if offset >= self._size:
                return
            yield image.digest + _PLACE(max(0, -offset), max(0, offset))
