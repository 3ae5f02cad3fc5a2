"""What rank 0 sends arrives as it was sent, whatever happens to the memory it came from."""

from __future__ import annotations

import numpy as np
import pytest
import zmq
from engine_support.fake_ranks import masks_of_words, new_request, plan_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from blade_llm.engine.ranks.messages import (
    ForwardMessage,
    SamplingMessage,
    decode,
    encode_forward,
    encode_sampling,
    masks_of,
    plan_bytes_per_slot,
    plan_with,
)
from blade_llm.sampling.masks import TokenMasks
from blade_llm.scheduling.plan import BlockUpdate, StepPlan
from blade_llm.spec.vision.images import ImagePixels


@given(
    arrays.arrays(np.int32, st.tuples(st.integers(0, 6), st.integers(0, 9))),
    st.sampled_from(["as it is", "strided", "by columns"]),
)
def test_masks_arrive_as_they_were(words: np.ndarray, layout: str) -> None:
    if layout == "strided":
        words = np.repeat(words, 2, axis=1)[:, ::2]
    if layout == "by columns":
        words = np.asfortranarray(words)
    indices = list(range(len(words)))
    payload = encode_sampling(TokenMasks(indices, words))
    expected = words.copy()
    words.fill(-7)  # as the memory of masks is used again
    message = decode(payload)
    assert isinstance(message, SamplingMessage)
    masks = masks_of(message)
    assert masks is not None
    assert masks.indices == indices
    assert masks.words.dtype == np.int32
    assert masks.words.shape == expected.shape
    assert (masks.words == expected).all()
    assert masks.words.flags.writeable
    assert masks.words.flags.c_contiguous


def test_no_masks_are_no_masks() -> None:
    message = decode(encode_sampling(None))
    assert isinstance(message, SamplingMessage)
    assert masks_of(message) is None


def test_a_plan_arrives_as_it_was() -> None:
    first = plan_of(3, 2)
    plan = StepPlan(3, first.chunks, [new_request(0, [5, 6])], [BlockUpdate(0, 0, [7])], [1])
    message = decode(encode_forward(plan))
    assert isinstance(message, ForwardMessage)
    assert message.plan == plan


def test_pixels_arrive_in_the_memory_of_their_frames() -> None:
    images = [ImagePixels(bytes([seed]) * 32, (1, 2, 2), (1, 4, 4, 3), bytes([seed]) * 48) for seed in (1, 2)]
    plan = StepPlan(3, plan_of(3, 2).chunks, new_images=images)
    message = decode(encode_forward(plan))
    assert isinstance(message, ForwardMessage)
    assert all(not image.pixels for image in message.plan.new_images)
    frames = [zmq.Frame(image.pixels) for image in images]
    assert plan_with(message, frames) == plan
    with pytest.raises(ValueError, match="shorter"):
        plan_with(message, frames[:1])


def test_masks_take_little_more_than_their_bits() -> None:
    masks = masks_of_words(range(8), 4748)  # 151,936 tokens
    assert len(encode_sampling(masks)) < masks.words.nbytes + 64


def test_a_slot_takes_little_more_than_its_request_id() -> None:
    plan = plan_of(1, 64)
    assert len(plan.chunks[0].request_id) < plan_bytes_per_slot(plan) < len(plan.chunks[0].request_id) + 16
    assert plan_bytes_per_slot(StepPlan(1, [])) > 0
