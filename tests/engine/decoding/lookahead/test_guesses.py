"""The pool of n-grams, and the tree of guesses that it makes."""

from __future__ import annotations

from blade_llm.decoding.lookahead import pool as pools
from blade_llm.decoding.lookahead.guesses import GuessTree, guess_tree
from blade_llm.decoding.lookahead.pool import NgramPool


def pool_of(*grams: tuple[int, ...], most: int = 5) -> NgramPool:
    pool = NgramPool(len(grams[0]), most)
    for gram in grams:
        pool.add(gram[0], gram[1:])
    return pool


def chains(tree: GuessTree) -> set[tuple[int, ...]]:
    """The tokens from the root to each leaf."""
    found = set()
    for leaf in set(range(len(tree.tokens))) - set(tree.parents):
        chain: list[int] = []
        at = leaf
        while at >= 0:
            chain.append(tree.tokens[at])
            at = tree.parents[at]
        found.add(tuple(reversed(chain)))
    return found


def test_a_token_keeps_its_latest_ngrams() -> None:
    pool = pool_of((1, 2, 3), (1, 4, 5), (1, 2, 3), (1, 6, 7), most=2)
    assert pool.after(1) == [(6, 7), (2, 3)]
    assert pool.latest_after(1) == (6, 7)
    assert pool.after(2) == []
    assert pool.latest_after(2) is None
    assert len(pool) == 2


def test_the_pool_forgets_tokens_that_were_not_added_for_longest() -> None:
    pool = NgramPool(2, 1)
    for token in range(pools.MOST_TOKENS + 10):
        pool.add(token, (7,))
        pool.add(0, (token,))
    assert len(pool) == pools.MOST_TOKENS
    assert pool.latest_after(0) is not None
    assert pool.latest_after(1) is None


def test_memory_is_bounded_whatever_the_number_of_guesses() -> None:
    pool = NgramPool(2, 127)
    for token in range(400):
        for rest in range(127):
            pool.add(token, (rest,))
    assert 0 < len(pool) <= pools.MOST_GRAMS


def test_ngrams_follow_one_another_and_share_what_they_begin_with() -> None:
    pool = pool_of((1, 2, 3), (3, 4, 5), (1, 2, 9), (9, 8, 7))
    tree = guess_tree(pool, 1, 10)
    assert chains(tree) == {(2, 9, 8, 7), (2, 3, 4, 5)}
    assert tree.tokens[:4] == [2, 9, 8, 7]
    assert tree.parents[:4] == [-1, 0, 1, 2], "the latest come first, where they need not be moved"


def test_guesses_are_no_deeper_than_two_ngrams_and_no_more_than_there_is_room_for() -> None:
    pool = pool_of((1, 2), (2, 3), (3, 1), (1, 4))
    assert chains(guess_tree(pool, 2, 10)) == {(3, 1, 4)}
    pool.add(1, (2,))
    assert chains(guess_tree(pool, 1, 10)) == {(2, 3, 1, 2), (4,)}
    for most in range(6):
        tree = guess_tree(pool, 1, most)
        assert len(tree.tokens) == len(tree.parents) == min(most, 5)
    assert guess_tree(pool, 77, 5).tokens == []


def test_one_chain_is_all_there_is_where_branches_do_not_do() -> None:
    pool = pool_of((1, 2, 3), (3, 4, 5), (1, 6, 7))
    tree = guess_tree(pool, 1, 10, one_chain=True)
    assert (tree.tokens, tree.parents) == ([6, 7], [-1, 0])
