"""Digests of blocks that overlap images: what two prompts share, and what they do not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from engine_support.images import IMAGE_TOKEN, image_of, with_images
from hypothesis import given
from hypothesis import strategies as st

from blade_llm.cache.prefix_cache import HashChain, root_digest
from blade_llm.spec.vision.images import ImageSpan

BLOCK = 4
Content = list[int | tuple[bytes, int]]


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[int], list[ImageSpan]]:
    """Text of few kinds of tokens, image tokens among them, and images, often side by side."""
    tokens: list[int] = []
    images: list[ImageSpan] = []
    for _ in range(draw(st.integers(1, 5))):
        tokens += draw(st.lists(st.sampled_from([IMAGE_TOKEN, 5]), max_size=6))
        if draw(st.booleans()):
            image = image_of(draw(st.sampled_from("XY")), len(tokens), draw(st.integers(1, 9)))
            images.append(image)
            tokens += [IMAGE_TOKEN] * image.count
    return tokens, images


def digests_of(tokens: list[int], images: list[ImageSpan]) -> list[bytes]:
    chain = HashChain(root_digest(), BLOCK, images)
    chain.extend(tokens, len(tokens) // BLOCK)
    return chain.digests


def content_of(tokens: list[int], images: list[ImageSpan]) -> Content:
    """What the model reads at each position."""
    content: Content = list(tokens)
    for image in images:
        for offset in range(image.count):
            content[image.start + offset] = (image.digest, offset)
    return content


@given(one=prompts(), other=prompts())
def test_blocks_are_equal_where_all_up_to_their_ends_is(
    one: tuple[list[int], list[ImageSpan]], other: tuple[list[int], list[ImageSpan]]
) -> None:
    both = digests_of(*one), digests_of(*other)
    contents = content_of(*one), content_of(*other)
    for index, (left, right) in enumerate(zip(*both, strict=False)):
        end = (index + 1) * BLOCK
        assert (left == right) == (contents[0][:end] == contents[1][:end])


@given(prompt=prompts())
def test_an_image_changes_its_blocks_and_those_after(prompt: tuple[list[int], list[ImageSpan]]) -> None:
    tokens, images = prompt
    with_, without = digests_of(tokens, images), digests_of(tokens, [])
    first = images[0].start // BLOCK if images else len(with_)
    assert with_[:first] == without[:first]
    assert not set(with_[first:]) & set(without)


@given(prompt=prompts(), cut=st.integers(0, 40))
def test_digests_do_not_depend_on_when_they_are_computed(prompt: tuple[list[int], list[ImageSpan]], cut: int) -> None:
    tokens, images = prompt
    chain = HashChain(root_digest(), BLOCK, images)
    chain.extend(tokens, min(cut, len(tokens)) // BLOCK)
    chain.extend(tokens, len(tokens) // BLOCK)
    assert chain.digests == digests_of(tokens, images)


def test_equal_images_side_by_side_are_told_from_one_that_is_longer() -> None:
    digest = image_of("X", 0, 8).digest
    one = [ImageSpan(0, 8, digest, (1, 1, 8))]
    two = [ImageSpan(0, 4, digest, (1, 1, 4)), ImageSpan(4, 4, digest, (1, 1, 4))]
    tokens = with_images([5] * 8, one)
    first, second = digests_of(tokens, one), digests_of(tokens, two)
    assert first[1] != second[1]
    assert all(left != right for left, right in pairwise(first + second[1:]))


class CountedImages(list[ImageSpan]):
    """Counts how often one of them is read."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[ImageSpan]:
        for image in super().__iter__():
            self.reads += 1
            yield image


def test_a_block_reads_its_own_images_alone() -> None:
    """However many the prompt has."""
    images = CountedImages(image_of("X", 40 * index, 30) for index in range(64))
    tokens = with_images([5] * 40 * 64, images)
    images.reads = 0
    chain = HashChain(root_digest(), BLOCK, images)
    chain.extend(tokens, len(tokens) // BLOCK)
    assert chain.digests == digests_of(tokens, list(images))
    assert images.reads <= 3 * (len(tokens) // BLOCK)
