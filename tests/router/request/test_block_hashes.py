"""The hashes of blocks: the same whether a piece of the text is known or not, and bounded memory."""

import random

import pytest

from blade_router.request import block_hashes
from blade_router.request.block_hashes import BLOCK, LONG_TEXT, MAX_PIECES, PIECE, hash_blocks

TEXT = random.Random(0).randbytes(4 * PIECE + 3 * BLOCK + 7)


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    block_hashes._known.clear()


def shared(one: list[int], other: list[int]) -> int:
    """Blocks they have in common."""
    return sum(a == b for a, b in zip(one, other, strict=False))


def plain(text: bytes, seed: int) -> list[int]:
    """The hashes as they are defined."""
    found = []
    for at in range(0, len(text) - BLOCK + 1, BLOCK):
        seed = hash((seed, text[at : at + BLOCK]))
        found.append(seed)
    return found


@pytest.mark.parametrize("size", [0, BLOCK - 1, BLOCK, LONG_TEXT - 1, LONG_TEXT, LONG_TEXT + BLOCK, len(TEXT)])
def test_a_known_text_has_the_same_hashes(size: int) -> None:
    text = TEXT[:size]
    first = hash_blocks(text, 1)
    assert first == hash_blocks(bytes(bytearray(text)), 1) == plain(text, 1)
    assert bool(block_hashes._known) == (size >= LONG_TEXT)


@pytest.mark.parametrize("place", [0, 70, PIECE - 1, PIECE, PIECE + 65, 3 * PIECE + 100, 4 * PIECE + BLOCK])
def test_a_text_that_differs_in_one_byte_has_the_hashes_of_what_is_before(place: int) -> None:
    known = hash_blocks(TEXT, 1)
    changed = TEXT[:place] + bytes([TEXT[place] ^ 1]) + TEXT[place + 1 :]
    assert hash_blocks(changed, 1) == plain(changed, 1)
    assert shared(known, hash_blocks(changed, 1)) == place // BLOCK
    assert hash_blocks(TEXT, 1) == known  # the changed one has taken its place among what is known


def test_another_seed_shares_nothing_with_a_known_text() -> None:
    assert shared(hash_blocks(TEXT, 1), hash_blocks(TEXT, 2)) == 0
    assert hash_blocks(TEXT, 2) == plain(TEXT, 2)


def test_a_known_piece_elsewhere_is_not_taken_for_this_one() -> None:
    hash_blocks(TEXT, 1)
    moved = TEXT[PIECE : 3 * PIECE] + TEXT[:PIECE]
    assert hash_blocks(moved, 1) == plain(moved, 1)


def test_only_the_pieces_that_were_used_last_are_kept() -> None:
    first = hash_blocks(TEXT, 1)
    for seed in range(2, MAX_PIECES):
        hash_blocks(TEXT, seed)
        hash_blocks(TEXT, 1)
        assert len(block_hashes._known) <= MAX_PIECES
    hits = [key for key in block_hashes._known if key[0] in (1, *first)]
    assert len(hits) == len(TEXT) // PIECE
