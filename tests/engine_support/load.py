"""Random load for an engine core: arrivals, requests, and clients that leave early."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine_support.images import image_of, pixels_of, with_images
from engine_support.sched_invariants import check_invariants
from hypothesis import strategies as st

from blade_llm.engine.core import EngineCore
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.request import Request
from blade_llm.spec.vision.images import ImageSpan

SHARED = [(7 * i + 3) % 19 for i in range(200)]
"""Most prompts begin with a piece of this, so that the prefix cache has something to find."""

MOST_IMAGE_TOKENS = 20
"""Of one image."""


@dataclass(frozen=True)
class Visitor:
    """One request of the load."""

    name: str
    comes_at: int
    """In steps."""
    prompt: list[int]
    sampling: SamplingParams
    leaves_after: int | None = None
    """Aborts after so many steps."""
    priority: int = 0
    adapter: int = 0
    images: tuple[ImageSpan, ...] = ()

    def request(self) -> Request:
        return Request(
            self.name,
            self.prompt,
            self.sampling,
            priority=self.priority,
            adapter=self.adapter,
            adapter_digest=bytes([self.adapter]) if self.adapter else b"",
            images=self.images,
            pixels={image.digest: pixels_of(image) for image in self.images},
        )


@dataclass
class Result:
    """What a visitor got."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_token_id: int | None = None


@st.composite
def loads(
    draw: st.DrawFn,
    *,
    vocabulary: int,
    max_visitors: int = 10,
    longest: int = 60,
    max_tokens: int = 40,
    special: bool = False,
) -> list[Visitor]:
    """Up to ``max_visitors`` requests; ``special``: some with an adapter, or images."""
    visitors = []
    for number in range(draw(st.integers(1, max_visitors))):
        shared = draw(st.integers(0, longest))
        own = draw(st.lists(st.integers(2, vocabulary - 1), min_size=1, max_size=12))
        most = draw(st.integers(1, max_tokens))
        prompt = SHARED[:shared] + own
        images: list[ImageSpan] = []
        start = 0
        while special and start < len(prompt) and draw(st.booleans()):
            start = draw(st.integers(start, len(prompt) - 1))
            count = draw(st.integers(1, min(MOST_IMAGE_TOKENS, len(prompt) - start)))
            images.append(image_of(draw(st.sampled_from("XY")), start, count))
            start += count
        prompt = with_images(prompt, images)
        sampling = SamplingParams(
            max_tokens=most,
            min_tokens=min(most, draw(st.sampled_from([0, 0, 3, 10]))),
            temperature=draw(st.sampled_from([0.0, 0.8])),
            seed=draw(st.integers(0, 3)),
            stop_token_ids=draw(st.sampled_from([(), (5,), (4, 9, 11)])),
            ignore_eos=draw(st.booleans()),
        )
        visitors.append(
            Visitor(
                name=str(number),
                comes_at=draw(st.integers(0, 30)),
                prompt=prompt,
                sampling=sampling,
                leaves_after=draw(st.none() | st.none() | st.integers(0, 25)),
                priority=draw(st.integers(0, 1)),
                adapter=draw(st.integers(0, 2)) if special else 0,
                images=tuple(images),
            )
        )
    return visitors


def play(core: EngineCore, load: list[Visitor], most_steps: int = 20_000) -> dict[str, Result]:
    """Run ``load`` to its end, checking all invariants after each step."""
    results = {visitor.name: Result() for visitor in load}
    gone: set[str] = set()
    step = 0
    while core.has_work or any(visitor.comes_at >= step for visitor in load):
        for visitor in load:
            if visitor.comes_at == step:
                core.scheduler.add(visitor.request())
            if visitor.leaves_after is not None and visitor.comes_at + visitor.leaves_after == step:
                core.abort([visitor.name])
                gone.add(visitor.name)
        for output in core.step():
            result = results[output.request_id]
            assert output.request_id not in gone, "output after the abort"
            assert result.finish_reason is None, "output after the end"
            result.token_ids += output.token_ids
            result.finish_reason, result.stop_token_id = output.finish_reason, output.stop_token_id
        check_invariants(core.scheduler)
        step += 1
        assert step < most_steps, "a request starves"
    assert core.scheduler.cache.num_free == core.scheduler.cache.num_blocks, "blocks leaked"
    return results


def assert_same(load: list[Visitor], one: dict[str, Result], other: dict[str, Result]) -> None:
    """The very same outputs; of those that left early, one may have got further."""
    for visitor in load:
        a, b = one[visitor.name], other[visitor.name]
        if visitor.leaves_after is None:
            assert a == b
        else:
            length = min(len(a.token_ids), len(b.token_ids))
            assert a.token_ids[:length] == b.token_ids[:length]
