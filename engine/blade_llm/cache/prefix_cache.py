"""The keys of the prefix cache: digests of what KV blocks contain.

What attention stores for a token depends on all tokens before it, so a block's digest is a hash chain: sha256 over the
digest of the block before it and its own token ids. The chain's root covers everything else the values depend on
(adapter weights, images) and a salt that keeps tenants apart. The digests are equal in every process and on every
machine.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256


def root_digest(*, adapter: bytes = b"", image: bytes = b"", salt: str = "") -> bytes:
    """The 32-byte start of a chain. ``adapter`` and ``image`` are content digests, empty for none."""
    # Lengths keep ("ab", "c") and ("a", "bc") apart.
    fields = (adapter, image, salt.encode())
    return sha256(b"".join(len(field).to_bytes(8, "little") + field for field in fields)).digest()


class HashChain:
    """The digests of one sequence's full blocks, computed once each as the sequence grows."""

    __slots__ = ("_pack", "_size", "digests", "root")

    def __init__(self, root: bytes, block_size: int) -> None:
        self.root = root
        self.digests: list[bytes] = []
        self._size = block_size
        self._pack = struct.Struct(f"<{block_size}I").pack

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Make sure that the first ``num_blocks`` blocks of ``token_ids`` have digests.

        ``token_ids`` starts with the tokens hashed before and holds at least ``num_blocks`` full blocks.
        """
        for index in range(len(self.digests), num_blocks):
            tokens = token_ids[index * self._size : (index + 1) * self._size]
            self.digests.append(sha256(self.parent(index) + self._pack(*tokens)).digest())

    def parent(self, index: int) -> bytes:
        """The digest that block ``index`` is chained to."""
        return self.digests[index - 1] if index else self.root
