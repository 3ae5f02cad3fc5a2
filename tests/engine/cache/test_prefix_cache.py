"""Names of blocks, and what of a prompt is found again."""

import subprocess
import sys

import pytest

from blade_llm.cache.manager import KVCacheManager
from blade_llm.cache.prefix_cache import HashChain, root_digest


def chain_of(tokens: list[int], root: bytes = b"") -> list[bytes]:
    chain = HashChain(root or root_digest(), 4)
    chain.extend(tokens, len(tokens) // 4)
    return chain.digests


def compute(cache: KVCacheManager, tokens: list[int], salt: str = "") -> tuple[int, list[int]]:
    """Run a sequence through the cache; returns (cached blocks, its block table)."""
    chain = cache.new_chain(salt)
    match = cache.match(chain, tokens)
    table = cache.allocate(match)
    cache.register(chain, tokens, table, len(match.cached), len(tokens) // cache.block_size)
    return len(match.cached), table


def test_a_name_covers_everything_before_the_block() -> None:
    base = chain_of([1, 2, 3, 4, 5, 6, 7, 8])
    assert chain_of([1, 2, 3, 4, 9, 6, 7, 8])[0] == base[0]
    assert chain_of([1, 2, 3, 4, 9, 6, 7, 8])[1] != base[1]
    assert chain_of([9, 2, 3, 4, 5, 6, 7, 8])[1] != base[1]


def test_adapter_and_salt_separate() -> None:
    roots = [
        root_digest(),
        root_digest(adapter=b"a"),
        root_digest(salt="a"),
        root_digest(adapter=b"ab", salt="c"),
        root_digest(adapter=b"a", salt="bc"),
    ]
    assert len({chain_of([1, 2, 3, 4], root)[0] for root in roots}) == len(roots)


def test_digests_of_text_stay_what_they_are() -> None:
    """Routers and engines of other versions know them."""
    assert root_digest().hex() == "9d908ecfb6b256def8b49a7c504e6c889c4b0e41fe6ce3e01863dd7b61a20aa0"
    digests = [digest.hex()[:16] for digest in chain_of([1, 2, 3, 4, 5, 6, 7, 70000])]
    assert digests == ["bb8ab7d3cfabf832", "b65ff4dae5a358ba"]


def test_names_are_equal_in_every_process() -> None:
    program = (
        "from blade_llm.cache.prefix_cache import HashChain, root_digest\n"
        "chain = HashChain(root_digest(salt='s'), 4)\n"
        "chain.extend([1, 2, 3, 70000], 1)\n"
        "print(chain.digests[0].hex())"
    )
    here = HashChain(root_digest(salt="s"), 4)
    here.extend([1, 2, 3, 70000], 1)
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here.digests[0].hex()


def test_digests_grow_with_the_sequence() -> None:
    chain = HashChain(root_digest(), 4)
    tokens = list(range(8))
    chain.extend(tokens, 1)
    tokens += list(range(8, 17))
    chain.extend(tokens, 4)
    assert chain.digests == chain_of(tokens)


@pytest.mark.parametrize(("length", "blocks"), [(15, 0), (16, 0), (17, 1), (32, 1), (33, 2)])
def test_the_last_token_is_always_computed(length: int, blocks: int) -> None:
    cache = KVCacheManager(16)
    tokens = list(range(length))
    cache.release(compute(cache, tokens)[1])
    assert compute(cache, tokens)[0] == blocks


def test_sharing_needs_the_same_salt() -> None:
    cache = KVCacheManager(16)
    tokens = list(range(40))
    compute(cache, tokens, "one tenant")
    assert compute(cache, tokens, "another")[0] == 0
    assert compute(cache, tokens, "one tenant")[0] == 2


def test_equal_blocks_behind_different_ones_are_not_shared() -> None:
    cache = KVCacheManager(16)
    compute(cache, [0] * 16 + [7] * 17)
    assert compute(cache, [1] * 16 + [7] * 17)[0] == 0


def test_the_beginning_of_a_released_sequence_lives_longest() -> None:
    cache = KVCacheManager(4)
    tokens = list(range(64))
    cache.release(compute(cache, tokens)[1])
    assert cache.allocate_block() is not None
    assert cache.allocate_block() is not None
    assert len(cache.match(cache.new_chain(), tokens).cached) == 2


def test_cached_blocks_that_nobody_holds_count_as_needed() -> None:
    cache = KVCacheManager(4)
    tokens = list(range(48))
    cache.release(compute(cache, tokens)[1])
    match = cache.match(cache.new_chain(), [*tokens, 1])
    assert (len(match.cached), match.num_fresh, match.num_needed) == (3, 1, 4)
    assert cache.allocate_block() is not None
    with pytest.raises(ValueError, match="4 KV blocks needed, 3 free"):
        cache.allocate(match)
    assert cache.num_free == 3


def test_entering_never_evicts_its_own_prefix() -> None:
    cache = KVCacheManager(4)
    tokens = list(range(48))
    cache.release(compute(cache, tokens)[1])
    match = cache.match(cache.new_chain(), tokens + list(range(16)))
    table = cache.allocate(match)
    assert table[:3] == match.cached
    assert len(set(table)) == 4


def test_without_prefix_cache_nothing_is_found() -> None:
    cache = KVCacheManager(16, enable_prefix_cache=False)
    tokens = list(range(40))
    cache.release(compute(cache, tokens)[1])
    assert compute(cache, tokens)[0] == 0
