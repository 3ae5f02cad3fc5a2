"""A request that begins with the output of another engine goes on with the tokens that one would have sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_support.examples import examples
from engine_support.fake_core import EOS, core_of, make_core, run
from engine_support.fake_grammar import FakeGrammars, grammar_spec_of
from engine_support.fake_runner import FakeRunner
from engine_support.tiny_models import engine_config, save_model
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest, RequestOutput
from blade_llm.runner import build_runner
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams

PROMPT = [7 * i % 190 + 3 for i in range(20)]
LENGTH = 40
"""Prompt and output fill more than three blocks of 16."""
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0, "seed": 11, "top_k": 30},
    "penalties": {
        "temperature": 0.9,
        "seed": 5,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.9,
    },
    "min_tokens": {"temperature": 1.5, "seed": 2, "min_tokens": 30, "stop_token_ids": tuple(range(3, 60))},
    "logprobs": {"temperature": 0.7, "seed": 3, "logprobs": 2},
    "bad_words": {"temperature": 0.0, "bad_words_token_ids": tuple((i, i) for i in range(3, 199))},
    "allowed": {"temperature": 1.0, "seed": 3, "allowed_token_ids": tuple(range(3, 60))},
}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> TorchRunner:
    folder: Path = tmp_path_factory.mktemp("qwen2")
    save_model(folder, "qwen2")
    return build_runner(
        engine_config(folder, max_num_seqs=64, max_model_len=160, max_batch_tokens=96, max_kv_blocks=400)
    )


def request(name: str = "whole", output: list[int] | None = None, **sampling: Any) -> GenerateRequest:
    params = SamplingParams(**{"max_tokens": LENGTH, "ignore_eos": True, "seed": 1, **sampling})
    return GenerateRequest(
        request_id=name, prompt_token_ids=PROMPT, sampling=params, output_token_ids=list(output or [])
    )


def play(core: EngineCore, *messages: GenerateRequest) -> dict[str, list[RequestOutput]]:
    for message in messages:
        core.add(message)
    return run(core)


def tokens_of(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def end_of(outputs: list[RequestOutput]) -> tuple[str | None, int | None]:
    assert outputs[-1].error is None
    return outputs[-1].finish_reason, outputs[-1].stop_token_id


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_goes_on_after_every_token(runner: TorchRunner, kind: str, cached: bool) -> None:
    """fp32. All continuations at once, and with the prefix cache they find one another's blocks."""

    def core() -> EngineCore:
        return core_of(
            runner,
            num_blocks=400,
            max_num_seqs=64,
            max_model_len=160,
            max_batch_tokens=96,
            enable_prompt_cache=cached,
            eos_token_ids=(1,),
        )

    whole = play(core(), request(**KINDS[kind]))["whole"]
    tokens = tokens_of(whole)
    assert len(tokens) >= 30
    rests = play(core(), *(request(str(cut), tokens[:cut], **KINDS[kind]) for cut in range(len(tokens))))
    for cut in range(len(tokens)):
        rest = rests[str(cut)]
        assert tokens_of(rest) == tokens[cut:]
        assert end_of(rest) == end_of(whole)
        if kind == "logprobs":
            reported = [entry.chosen for output in rest for entry in output.logprobs or ()]
            expected = [entry.chosen for output in whole for entry in output.logprobs or ()]
            assert reported == pytest.approx(expected[cut:], abs=1e-4)


ANY = list(range(3, 40))


@st.composite
def grammar_places(draw: st.DrawFn) -> list[list[int]] | None:
    """The places of a grammar, many of them forced; None: a free output."""
    if draw(st.booleans()):
        return None
    place = st.just(ANY) | st.lists(st.integers(3, 39), min_size=1, max_size=1)
    places = draw(st.lists(place, min_size=1, max_size=30))
    return [*places, []] if draw(st.booleans()) else places


@settings(max_examples=examples(150), deadline=None)
@given(
    places=grammar_places(), seed=st.integers(0, 9), late=st.booleans(), cut=st.integers(0, 100), logprobs=st.booleans()
)
def test_any_output_goes_on_after_any_token(
    places: list[list[int]] | None, seed: int, late: bool, cut: int, logprobs: bool
) -> None:
    """Free and guided, with and without forced tokens, on devices that are done at once and later."""
    values: dict[str, Any] = {"seed": seed, "temperature": 0.8, "max_tokens": 25, "ignore_eos": False}
    if places is not None:
        values["grammar_spec"] = grammar_spec_of(places)
    if logprobs:
        values["logprobs"] = 0

    def core() -> EngineCore:
        return make_core(FakeRunner(late=late), grammars=FakeGrammars())

    whole = play(core(), request(**values))["whole"]
    cut %= len(whole)
    said = tokens_of(whole[:cut])
    rest = play(core(), request("rest", said, **values))["rest"]
    assert said + tokens_of(rest) == tokens_of(whole)
    assert end_of(rest) == end_of(whole)


def test_its_prompt_is_counted_and_its_output_found_in_the_cache() -> None:
    core = make_core(FakeRunner())
    whole = play(core, request(temperature=0.0))["whole"]
    rest = play(core, request("rest", tokens_of(whole)[:30], temperature=0.0))["rest"]
    assert tokens_of(rest) == tokens_of(whole)[30:]
    assert rest[0].cached_tokens == len(PROMPT)
    state = core.state(epoch="", sequence=0, draining=False)
    assert state.prompt_tokens_total == 2 * len(PROMPT)
    assert state.generation_tokens_total == LENGTH + LENGTH - 30


def test_an_output_that_has_ended_ends_at_once() -> None:
    core = make_core(FakeRunner())
    ended = play(core, request(output=[5, 6, EOS], ignore_eos=False))["whole"]
    assert (tokens_of(ended), end_of(ended)) == ([], ("stop", None))
    stopped = play(core, request(output=[5, 9], stop_token_ids=(9,)))["whole"]
    assert (tokens_of(stopped), end_of(stopped)) == ([], ("stop", None))
    guided = request(output=[5, 6], ignore_eos=False, grammar_spec=grammar_spec_of([[5], [6]]))
    assert end_of(play(make_core(FakeRunner(), grammars=FakeGrammars()), guided)["whole"]) == ("stop", None)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (request(output=[5] * LENGTH), "has 40 tokens, but the answer may have 40"),
        (request(output=[5, EOS, 6], ignore_eos=False), "goes on after token 2 at index 1"),
        (msgspec.structs.replace(request(output=[5]), sibling_ids=["b"]), "output_token_ids is for a single answer"),
        (msgspec.structs.replace(request(output=[5]), pooling="last"), "output_token_ids is for a single answer"),
        (request(output=[5], beam_width=2), "output_token_ids is for a single answer"),
        (request(output=[6], grammar_spec=grammar_spec_of([[5], [6]])), "structure: token 6 is not allowed at 0"),
    ],
)
def test_an_output_that_cannot_go_on_is_refused(message: GenerateRequest, complaint: str) -> None:
    core = make_core(FakeRunner(), grammars=FakeGrammars())
    with pytest.raises(ValueError, match=complaint):
        core.add(message)
    assert not core.has_work
