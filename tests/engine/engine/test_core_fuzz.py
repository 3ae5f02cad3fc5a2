"""Samples, beams, grammars, pooled states and plain outputs at once, on caches that are too small, with clients that
leave at any moment: everybody else gets what they would get alone, and nothing is left behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from engine_support.async_device import AsyncDevice
from engine_support.examples import examples
from engine_support.fake_beams import beams_alone
from engine_support.fake_core import EOS, core_of
from engine_support.fake_grammar import FakeGrammar, FakeGrammars, grammar_spec_of
from engine_support.fake_runner import FakeRunner, context_of, fake_embedding, fake_logprobs, tokens_alone
from engine_support.load import SHARED
from engine_support.sched_invariants import check_invariants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.engine.messages import GenerateRequest, RequestOutput
from blade_llm.sampling.parameters import SamplingParams

VOCABULARY = 23
MAX_MODEL_LEN = 100


@dataclass(frozen=True)
class Visitor:
    """A prompt, when it comes, and when which of its outputs are not wanted any more."""

    message: GenerateRequest
    comes_at: int
    leaves: tuple[tuple[int, int], ...]
    """(steps after it came, index of the output)"""
    places: list[list[int]] | None = None

    @property
    def ids(self) -> list[str]:
        return [self.message.request_id, *self.message.sibling_ids]


@st.composite
def grammars(draw: st.DrawFn) -> list[list[int]]:
    token = st.integers(3, VOCABULARY - 1)
    place = st.lists(token, min_size=1, max_size=1) | st.lists(token, min_size=1, max_size=4, unique=True)
    places = draw(st.lists(place, min_size=1, max_size=30))
    return [*places, []] if draw(st.booleans()) else places


@st.composite
def visitors(draw: st.DrawFn) -> list[Visitor]:
    load = []
    for number in range(draw(st.integers(1, 6))):
        prompt = SHARED[: draw(st.integers(0, 40))] + draw(
            st.lists(st.integers(2, VOCABULARY - 1), min_size=1, max_size=12)
        )
        kind = draw(st.sampled_from(["samples", "samples", "guided", "beams", "pooled", "one"]))
        most = draw(st.integers(1, 40))
        num_samples = 1 if kind in ("pooled", "one") else draw(st.sampled_from([1, 2, 3, 8]))
        values: dict[str, Any] = {
            "max_tokens": most,
            "min_tokens": min(most, draw(st.sampled_from([0, 0, 4]))),
            "temperature": draw(st.sampled_from([0.0, 0.8])),
            "seed": draw(st.integers(0, 3)),
            "stop_token_ids": draw(st.sampled_from([(), (5,)])),
            "ignore_eos": draw(st.booleans()),
            "prompt_logprobs": draw(st.sampled_from([None, None, 1])),
        }
        places = None
        if kind == "guided":
            places = draw(grammars())
            values["grammar_spec"] = grammar_spec_of(places)
        if kind == "beams":
            values["beam_width"] = max(2, min(num_samples, 4)) + draw(st.integers(0, 1))
            num_samples = min(num_samples, values["beam_width"])
            values["length_penalty"] = draw(st.sampled_from([1.0, 0.0, 2.0]))
            values["early_stopping"] = draw(st.booleans())
        message = GenerateRequest(
            request_id=f"{number}.0",
            sibling_ids=[f"{number}.{index}" for index in range(1, num_samples)],
            prompt_token_ids=prompt,
            sampling=SamplingParams(**values),
            pooling=draw(st.sampled_from(["last", "mean"])) if kind == "pooled" else "",
            priority=draw(st.integers(0, 1)),
        )
        leaves = draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, num_samples - 1)), max_size=num_samples))
        if draw(st.integers(0, 4)) == 0:
            moment = draw(st.integers(0, 20))
            leaves = [(moment, index) for index in range(num_samples)]
        load.append(Visitor(message, draw(st.integers(0, 20)), tuple(leaves), places))
    return load


def play(core: EngineCore, load: list[Visitor]) -> tuple[dict[str, list[RequestOutput]], set[str]]:
    """The outputs, and who left before its end."""
    outputs: dict[str, list[RequestOutput]] = {name: [] for visitor in load for name in visitor.ids}
    gone: set[str] = set()
    refused: set[str] = set()
    step = 0
    while core.has_work or any(visitor.comes_at + 21 > step for visitor in load):
        for visitor in load:
            if visitor.comes_at == step:
                try:
                    core.add(visitor.message)
                except ValueError:
                    refused.update(visitor.ids)
            for moment, index in visitor.leaves:
                if visitor.comes_at + moment == step:
                    core.abort([visitor.ids[index]])
                    if not (outputs[visitor.ids[index]] and outputs[visitor.ids[index]][-1].finish_reason):
                        gone.add(visitor.ids[index])
        check_invariants(core.scheduler)
        if not core.scheduler.has_work:
            assert core.scheduler.cache.num_free == core.scheduler.cache.num_blocks
        for output in core.step():
            assert output.request_id not in gone, "output after the abort"
            each = outputs[output.request_id]
            assert not each or each[-1].finish_reason is None, "output after the end"
            each.append(output)
        check_invariants(core.scheduler)
        step += 1
        assert step < 20_000, "a request starves"
    assert core.scheduler.cache.num_free == core.scheduler.cache.num_blocks, "blocks leaked"
    return outputs, gone | refused


def check(visitor: Visitor, outputs: dict[str, list[RequestOutput]], gone: set[str]) -> None:
    message, prompt = visitor.message, visitor.message.prompt_token_ids
    limits: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "eos_token_ids": (EOS,),
        "max_model_len": MAX_MODEL_LEN,
    }
    best = beams_alone(prompt, message.sampling, **limits) if message.sampling.beam_width else None
    for index, name in enumerate(visitor.ids):
        got = outputs[name]
        tokens = [token for output in got for token in output.token_ids]
        if best is not None:
            expected = best[index]
        else:
            grammar = None if visitor.places is None else FakeGrammar(visitor.places)
            expected = tokens_alone(prompt, message.sampling, sample_index=index, grammar=grammar, **limits)
        if name in gone:
            assert message.pooling or tokens == expected[0][: len(tokens)]
            continue
        assert got, "no output"
        end = got[-1]
        assert end.error is None
        if message.pooling:
            assert end.embedding == fake_embedding(context_of(prompt), message.pooling)
        else:
            assert (tokens, end.finish_reason, end.stop_token_id) == expected
        k = message.sampling.prompt_logprobs
        if k is not None and index == 0:
            pairs = zip(context_of(prompt), prompt[1:], strict=False)
            assert got[0].prompt_logprobs == [None, *(fake_logprobs(c, t, k, VOCABULARY) for c, t in pairs)]
        else:
            assert got[0].prompt_logprobs is None
        assert all(output.prompt_logprobs is None and output.cached_tokens is None for output in got[1:])


LIMITS = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(7, 24),
        "max_num_seqs": st.integers(1, 9),
        "max_batch_tokens": st.integers(3, 60),
        "enable_prompt_cache": st.booleans(),
    }
)


@pytest.mark.parametrize("late", [False, True])
@settings(
    report_multiple_bugs=False,
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(load=visitors(), limits=LIMITS)
def test_nothing_is_left_behind_whoever_leaves(late: bool, load: list[Visitor], limits: dict[str, Any]) -> None:
    runner = FakeRunner(
        limits["num_blocks"],
        limits["max_num_seqs"],
        MAX_MODEL_LEN,
        VOCABULARY,
        max_batch_tokens=limits["max_batch_tokens"],
    )
    info = EngineInfo(model="fake", max_model_len=MAX_MODEL_LEN, device="cpu", dtype="float32", vocab_size=VOCABULARY)
    device = AsyncDevice(runner) if late else runner
    core = core_of(device, max_model_len=MAX_MODEL_LEN, info=info, grammars=FakeGrammars(), **limits)
    outputs, gone = play(core, load)
    for visitor in load:
        check(visitor, outputs, gone)
