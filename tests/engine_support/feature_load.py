"""Requests with everything that one can set at once, run by the real runner, and a comparison of what they get."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
import torch
from engine_support.fake_grammar import EOS, FakeGrammars, grammar_spec_of

from blade_llm.config import EngineConfig
from blade_llm.decoding.step_seconds import StepSeconds
from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.engine.messages import GenerateRequest
from blade_llm.runner import build_runner
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs

BAD_WORDS = ((40,), (13, 13), (13, 55), (20, 99), (31, 13, 31))
"""What a logit bias makes likely is among them."""
ALLOWED = tuple(range(150))
PLACES = [[7], [8], [9], [20, 30, 40], *([[11]] * 20), list(range(50, 120)), [12], [3, 4, 5], []]


def free_drafts() -> StepSeconds:
    """Draft tokens cost nothing: there are as many as there can be. It learns, so each engine has its own."""
    return StepSeconds({1: 1.0, 1000: 1.0}, {1: 0.0, 1000: 0.0})


def core_for(config: EngineConfig, runner: TorchRunner | None = None, **options: Any) -> EngineCore:
    """``runner``: of ``config``, built when not given; ``options``: of :meth:`EngineCore.from_config`."""
    runner = runner or build_runner(config)
    info = EngineInfo(
        model="tiny",
        max_model_len=runner.max_model_len,
        device="cpu",
        dtype="float32",
        vocab_size=runner.model_config.vocab_size,
    )
    return EngineCore.from_config(
        config,
        runner,
        info,
        num_blocks=runner.num_blocks,
        eos_token_ids=(EOS,),
        grammars=FakeGrammars(),
        draft_positions=0 if runner.draft is None else runner.draft.max_positions,
        **options,
    )


def requests_of(count: int, seed: int = 3) -> list[GenerateRequest]:
    choose = random.Random(seed)
    shared = [choose.randrange(3, 199) for _ in range(40)]
    made = []
    for number in range(count):
        prompt = [choose.randrange(3, 199) for _ in range(choose.randrange(1, 90))]
        sampling = SamplingParams(
            temperature=choose.choice([0.0, 0.9]),
            top_p=choose.choice([1.0, 0.8]),
            seed=number,
            max_tokens=choose.randrange(5, 60),
            repetition_penalty=choose.choice([1.0, 1.3]),
            logprobs=choose.choice([None, 0, 2]),
            min_tokens=choose.choice([0, 4]),
            ignore_eos=number % 6 == 4,
            logit_bias=choose.choice([{}, {13: 6.0, 14: -100.0}]),
            prompt_logprobs=3 if number % 6 == 1 else None,
            grammar_spec=grammar_spec_of(PLACES) if number % 6 in (2, 3) else None,
        )
        siblings = [f"{number}.{index}" for index in range(1, 4)] if number % 6 in (0, 3) else []
        made.append(
            GenerateRequest(
                request_id=str(number),
                prompt_token_ids=shared + prompt if number % 2 else prompt,
                sampling=SamplingParams(max_tokens=1, seed=0) if number % 6 == 5 else sampling,
                sibling_ids=siblings,
                pooling=choose.choice(["mean", "last"]) if number % 6 == 5 else "",
            )
        )
    return made


def restricted(requests: Iterable[GenerateRequest]) -> list[GenerateRequest]:
    """The same, most of them with bad words or allowed tokens, those with grammars included."""
    changed = []
    for number, request in enumerate(requests):
        sampling = msgspec.structs.replace(
            request.sampling,
            bad_words_token_ids=BAD_WORDS if number % 3 == 1 or number % 6 == 3 else (),
            allowed_token_ids=ALLOWED if number % 4 in (1, 2) else None,
        )
        changed.append(request if request.pooling else msgspec.structs.replace(request, sampling=sampling))
    return changed


class Result:
    """All that came for one id."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.reason: str | None = None
        self.logprobs: list[TokenLogprobs] = []
        self.prompt: list[TokenLogprobs | None] | None = None
        self.embedding: torch.Tensor | None = None


def run(core: EngineCore, requests: Iterable[GenerateRequest], stagger: int) -> dict[str, Result]:
    waiting = list(requests)
    results = {name: Result() for request in waiting for name in (request.request_id, *request.sibling_ids)}
    for step in range(20_000):
        if waiting and step % stagger == 0:
            core.add(waiting.pop(0))
        if not core.has_work and not waiting:
            return results
        for output in core.step():
            assert output.error is None
            result = results[output.request_id]
            result.tokens += output.token_ids
            result.logprobs += output.logprobs or []
            result.reason = output.finish_reason or result.reason
            result.prompt = output.prompt_logprobs or result.prompt
            if output.embedding is not None:
                result.embedding = torch.frombuffer(bytearray(output.embedding), dtype=torch.float32)
    raise AssertionError("did not finish")


def check_equal(found: Result, expected: Result) -> None:
    assert (found.tokens, found.reason) == (expected.tokens, expected.reason)
    for some, others in ((found.logprobs, expected.logprobs), (found.prompt or [], expected.prompt or [])):
        assert len(some) == len(others)
        for one, other in zip(some, others, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert one.token_ids == other.token_ids
                assert one.chosen == pytest.approx(other.chosen, abs=1e-4)
    assert (found.embedding is None) == (expected.embedding is None)
    if found.embedding is not None and expected.embedding is not None:
        torch.testing.assert_close(found.embedding, expected.embedding, atol=1e-4, rtol=1e-4)
