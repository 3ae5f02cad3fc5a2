"""The hashes of a text's blocks, each over the block and all before it.

Long prompts come again: a conversation with each of its turns, a document with each question about it. To compare a
piece of text with the one that was there before costs a fifth of hashing it, so the hashes of the pieces of long texts
that came last are kept.
"""

import struct
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

BLOCK: Final = 256
"""Bytes of text in a block."""
PIECE: Final = 8192
"""Bytes that are compared at once."""
LONG_TEXT: Final = 2 * PIECE
"""Bytes from which on a text is long."""
MAX_PIECES: Final = 512
"""Pieces that are kept: with their hashes about 5 MiB."""
_HEAD: Final = 64
"""Bytes by which pieces are found that may follow the same text."""
_FORMAT: Final = "256s"

_known: OrderedDict[tuple[int, bytes], tuple[bytes, list[int]]] = OrderedDict()
"""Of a hash, and the first bytes that follow: the piece that followed last, and the hashes of its blocks."""


def hash_blocks(text: bytes, seed: int) -> list[int]:
    """A number for each full block. Numbers of a process are equal where seed, block and all blocks before are."""
    count = len(text) // BLOCK
    if len(text) < LONG_TEXT:
        return _hash(text, 0, count, seed)
    hashes: list[int] = []
    link = seed
    at = 0
    while at + PIECE <= len(text):
        key = (link, text[at : at + _HEAD])
        known = _known.get(key)
        if known is not None and text.startswith(known[0], at):
            _known.move_to_end(key)
            found = known[1]
        else:
            found = _hash(text, at, PIECE // BLOCK, link)
            if known is None and len(_known) >= MAX_PIECES:
                _known.popitem(last=False)
            _known[key] = text[at : at + PIECE], found
        hashes += found
        link = found[-1]
        at += PIECE
    return hashes + _hash(text, at, count - at // BLOCK, link)


def hash_with_images(text: bytes, images: Sequence[int], image_blocks: int, seed: int, most: int) -> list[int]:
    """The same of a text with images in it, each of which counts so many blocks; at most about ``most`` numbers.

    A block ends before an image at the latest, so that also one that little text surrounds has blocks of its own.

    Args:
        images: positions in the text behind the digest of each image, in order.
    """
    hashes: list[int] = []
    link = seed
    at = 0
    for end in images:
        hashes += hash_blocks(text[at:end], link)
        if len(hashes) >= most:
            return hashes[:most]
        if hashes:
            link = hashes[-1]
        rest: bytes = text[end - (end - at) % BLOCK : end]
        for _ in range(image_blocks):
            link = hash((link, rest))
            hashes.append(link)
        at = end
    hashes += hash_blocks(text[at:], link)
    return hashes[:most]


def _hash(text: bytes, start: int, count: int, link: int) -> list[int]:
    """The hashes of so many blocks from there on; ``link`` is that of the block before."""
    return [link := hash((link, block)) for block in struct.unpack_from(_FORMAT * count, text, start)]
