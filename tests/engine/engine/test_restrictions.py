"""Bad words and allowed tokens by the real runner: over resumed outputs, with grammars, and where nothing is left."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_support.async_device import AsyncDevice
from engine_support.fake_core import core_of
from engine_support.fake_grammar import EOS, FakeGrammar, FakeGrammars, allowed_tokens, grammar_spec_of
from engine_support.tiny_models import engine_config, save_model

from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.engine.messages import GenerateRequest, RequestOutput
from blade_llm.engine.restricted_grammar import restricted
from blade_llm.runner import build_runner
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.masks import mask_words
from blade_llm.sampling.parameters import SamplingParams

BLOCKS = 24
VOCABULARY = 200
LIMITS: dict[str, Any] = {"num_blocks": BLOCKS, "max_num_seqs": 4, "max_model_len": 160, "max_batch_tokens": 48}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> TorchRunner:
    folder: Path = tmp_path_factory.mktemp("tiny")
    save_model(folder, "qwen2")
    config = engine_config(folder, max_num_seqs=4, max_model_len=160, max_batch_tokens=48, max_kv_blocks=BLOCKS)
    return build_runner(config)


@pytest.fixture(params=[False, True], ids=["in step", "overlapping"])
def core(runner: TorchRunner, request: pytest.FixtureRequest) -> EngineCore:
    device = AsyncDevice(runner) if request.param else runner
    size = runner.model_config.vocab_size
    info = EngineInfo(model="tiny", max_model_len=160, device="cpu", dtype="float32", vocab_size=size)
    return core_of(device, overlap=request.param, grammars=FakeGrammars(), info=info, eos_token_ids=(EOS,), **LIMITS)


def play(core: EngineCore, *requests: GenerateRequest) -> dict[str, list[RequestOutput]]:
    found: dict[str, list[RequestOutput]] = {}
    for each in requests:
        core.add(each)
    while core.has_work:
        for output in core.step():
            found.setdefault(output.request_id, []).append(output)
    return found


def request(name: str = "r", *, output: tuple[int, ...] = (), **sampling: Any) -> GenerateRequest:
    params = SamplingParams(**{"max_tokens": 9, "temperature": 0.0, "ignore_eos": True, **sampling})
    return GenerateRequest(
        request_id=name, prompt_token_ids=[11, 12, 60], sampling=params, output_token_ids=list(output)
    )


def tokens_of(outputs: list[RequestOutput]) -> list[int]:
    assert all(output.error is None for output in outputs)
    return [token for output in outputs for token in output.token_ids]


LIKELY = {"logit_bias": {60: 100.0, 61: 99.0, 62: 98.0}}


def test_a_bad_word_is_not_completed(core: EngineCore) -> None:
    words = {"bad_words_token_ids": ((60, 60), (60, 61, 60), (62,))}
    assert tokens_of(play(core, request(**LIKELY, **words))["r"])[:4] == [60, 61, 61, 60]


def test_an_output_from_elsewhere_counts_and_the_prompt_does_not(core: EngineCore) -> None:
    words = {"bad_words_token_ids": ((60, 60),)}
    found = play(core, request("new", **LIKELY, **words), request("resumed", output=(60,), **LIKELY, **words))
    whole = tokens_of(found["new"])
    assert whole[:4] == [60, 61, 60, 61]
    assert tokens_of(found["resumed"]) == whole[1:]


def test_samples_and_neighbours_keep_to_their_own(core: EngineCore) -> None:
    wide = GenerateRequest(
        request_id="a",
        sibling_ids=["b", "c"],
        prompt_token_ids=[5, 6],
        sampling=SamplingParams(max_tokens=12, seed=4, allowed_token_ids=(70, 71, 72), bad_words_token_ids=((70, 71),)),
    )
    alone = tokens_of(play(core, request("free"))["free"])
    found = play(core, wide, request("free"))
    assert tokens_of(found["free"]) == alone
    for name in "abc":
        tokens = tokens_of(found[name])
        assert len(tokens) == 12
        assert {*tokens} <= {70, 71, 72}
        assert (70, 71) not in pairwise(tokens)
        assert found[name][-1].finish_reason == "length"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_nothing_is_left_the_request_ends_with_an_error(core: EngineCore, temperature: float) -> None:
    words = {"allowed_token_ids": (60, 61), "bad_words_token_ids": ((60, 61), (60, 60), (61, 61))}
    alone = tokens_of(play(core, request("good"))["good"])
    found = play(core, request("bad", temperature=temperature, **LIKELY, **words), request("good"))
    last = found["bad"][-1]
    assert [token for output in found["bad"] for token in output.token_ids] in ([60], [61, 60])
    assert last.finish_reason == "abort"
    assert last.error is not None
    assert (last.error.kind, last.error.field) == ("invalid_request", "allowed_token_ids")
    assert "leaves no token to go on with after" in str(last.error)
    assert tokens_of(found["good"]) == alone
    state = core.state(epoch="", sequence=0, draining=False)
    assert (state.running, state.waiting, state.kv_blocks_free) == (0, 0, BLOCKS)


def test_nothing_is_left_before_min_tokens(core: EngineCore) -> None:
    found = play(core, request(ignore_eos=False, min_tokens=2, allowed_token_ids=(EOS,)))["r"]
    assert found[-1].error is not None
    assert "after 0 tokens" in str(found[-1].error)


def test_a_grammar_and_allowed_tokens(core: EngineCore) -> None:
    """What both allow; the output ends where the grammar may, though it may not have the end's token."""
    anything = list(range(3, 100))
    grammar = grammar_spec_of([[20, 30, 40], anything, [7], anything, []])
    found = play(core, request(grammar_spec=grammar, ignore_eos=False, allowed_token_ids=(30, 7, 50)))["r"]
    tokens = tokens_of(found)
    assert (tokens[0], tokens[2], len(tokens)) == (30, 7, 4)
    assert {*tokens} <= {30, 7, 50}
    assert found[-1].finish_reason == "stop"


def test_a_grammar_and_bad_words(core: EngineCore) -> None:
    grammar = grammar_spec_of([[20], [30, 31], [40, 41], []])
    words = {"bad_words_token_ids": ((20, 30), (31, 40)), "logit_bias": {30: 50.0, 40: 50.0}}
    found = play(core, request(grammar_spec=grammar, ignore_eos=False, **words))["r"]
    assert tokens_of(found) == [20, 31, 41]


def test_a_grammar_without_an_allowed_token(core: EngineCore) -> None:
    found = play(core, request(grammar_spec=grammar_spec_of([[20], [30]]), ignore_eos=False, allowed_token_ids=(5,)))
    error = found["r"][-1].error
    assert error is not None
    assert error.kind == "invalid_structure"
    assert "allowed_token_ids leaves none" in str(error)


def test_forced_tokens_stop_before_what_is_forbidden() -> None:
    places = [[20], [30], [40], [50, 51], []]
    params = SamplingParams(allowed_token_ids=(20, 30, 51))
    grammar = restricted(FakeGrammar(places), params, frozenset({EOS}), VOCABULARY)
    assert grammar.forced() == [20, 30]
    mask = np.empty(mask_words(VOCABULARY), dtype=np.int32)
    for params, forced, allowed in (
        (SamplingParams(bad_words_token_ids=((20, 30),)), [], {20}),
        (SamplingParams(bad_words_token_ids=((30,),)), [20], {20}),
        (SamplingParams(bad_words_token_ids=((20,),)), [], set()),
    ):
        grammar = restricted(FakeGrammar(places), params, frozenset({EOS}), VOCABULARY).copy()
        assert grammar.forced() == forced
        grammar.fill(mask)
        assert allowed_tokens(mask) == allowed
        assert not grammar.finished
    free = FakeGrammar(places)
    assert restricted(free, SamplingParams(), frozenset(), VOCABULARY) is free
