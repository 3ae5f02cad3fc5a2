"""Speculative decoding from flags, vLLM's configuration and arguments: one configuration, or a clear refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blade_llm.cli.vllm_flags import ServerFlagParser
from blade_llm.config import SpeculativeConfig
from blade_llm.models.errors import ModelFilesError
from blade_llm.speculative_options import (
    draft_tokenizer_folder,
    require_same_tokens,
    speculative_from_flags,
    speculative_of,
)


def resolve(name: str) -> Path:
    return Path("/models") / name


def from_flags(*argv: str) -> SpeculativeConfig | None:
    return speculative_from_flags(ServerFlagParser("blade_llm_server").parse(["--model", "M", *argv]), resolve)


DRAFT = SpeculativeConfig(method="draft", gamma=2, draft_model="/models/small")
HEAD = SpeculativeConfig(method="eagle3", gamma=3, draft_model="/models/head")
MTP = SpeculativeConfig(method="mtp", gamma=1)


@pytest.mark.parametrize(
    ("argv", "config"),
    [
        ([], None),
        (["--decode_algo", "ngram"], SpeculativeConfig(method="ngram")),
        (["--decode_algo=sps", "--draft.model=small", "--gamma=2"], DRAFT),
        (["--use_sps", "--draft.model=small", "--gamma=2"], DRAFT),
        (["--speculative-config", '{"model": "small", "num_speculative_tokens": 2}'], DRAFT),
        (
            ["--speculative_config", '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, '
             '"prompt_lookup_min": 3, "disable_by_batch_size": 8}'],
            SpeculativeConfig(method="ngram", gamma=5, ngram_min_match=3, disable_above_batch=8),
        ),
        (
            ["--decode_algo", "ngram", "--ngram_min_match", "1", "--speculative_disable_by_batch_size", "4"],
            SpeculativeConfig(method="ngram", ngram_min_match=1, disable_above_batch=4),
        ),
        (["--use_lookahead"], SpeculativeConfig(method="look_ahead")),
        (["--use_lookahead", "--decode_algo=look_ahead"], SpeculativeConfig(method="look_ahead")),
        (
            ["--decode_algo=look_ahead", "--look_ahead_window_size=15", "--look_ahead_gram_size=5",
             "--guess_set_size=16"],
            SpeculativeConfig(
                method="look_ahead", look_ahead_window_size=15, look_ahead_gram_size=5, guess_set_size=16
            ),
        ),
        (
            ["--speculative_config", '{"method": "look_ahead", "guess_set_size": 3}'],
            SpeculativeConfig(method="look_ahead", guess_set_size=3),
        ),
        (["--decode_algo=eagle3", "--draft.model=head", "--gamma=3"], HEAD),
        (["--speculative_config", '{"method": "eagle3", "model": "head", "num_speculative_tokens": 3}'], HEAD),
        (["--decode_algo=mtp", "--gamma=1"], MTP),
        (["--speculative_config", '{"method": "mtp", "num_speculative_tokens": 1}'], MTP),
        (["--speculative_config", '{"method": "deepseek_mtp", "num_speculative_tokens": 1}'], MTP),
        (["--speculative_config", '{"method": "mimo_mtp", "num_speculative_tokens": 1}'], MTP),
        (["--speculative_config", '{"method": "qwen3_next_mtp", "num_speculative_tokens": 1}'], MTP),
    ],
)  # fmt: skip
def test_flags(argv: list[str], config: SpeculativeConfig | None) -> None:
    assert from_flags(*argv) == config


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--decode_algo", "sps"], "needs a draft model: give --draft.model"),
        (["--draft.model", "x"], "--draft.model needs --decode_algo sps"),
        (["--decode_algo=ngram", "--draft.model=x"], "--draft.model needs --decode_algo sps"),
        (["--decode_algo=ngram", "--gamma=1000"], "gamma is 1000; give 1 to 16"),
        (["--decode_algo=ngram", "--ngram_min_match=99"], "ngram_min_match is 99"),
        (["--use_lookahead", "--use_sps"], "ask for look_ahead and for sps; give one"),
        (["--use_lookahead", "--draft.model=x"], "--draft.model needs --decode_algo sps"),
        (["--use_lookahead", "--look_ahead_gram_size=1"], "are 7, 1, 5; give at least 1, 2 and 1"),
        (["--use_lookahead", "--look_ahead_window_size=60"], r"= 129 more tokens in a step .* at most 127 can branch"),
        (["--decode_algo=ngram", "--speculative_config={}"], "leave --decode_algo and --draft.model out"),
        (["--decode_algo=eagle3"], "eagle3 needs a draft head: give --draft.model"),
        (["--use_sps", "--decode_algo=eagle3", "--draft.model=x"], "ask for eagle3 and for sps; give one"),
        (["--decode_algo=mtp", "--draft.model=x"], "own checkpoint brings: leave --draft.model out"),
        (["--decode_algo=mtp", "--draft.dtype=float32"], r"draft_dtype \(--draft.dtype\) is float32; .* method mtp"),
        (["--decode_algo=eagle3", "--draft.model=x", "--draft.dtype=float16"], "is float16; .* method eagle3"),
        (["--speculative_config", '{"method": "mtp", "model": "x"}'], "with the methods draft .* and eagle3"),
        (["--speculative_config", '{"method": "eagle3"}'], "with the methods draft .* and eagle3"),
        (["--speculative_config", '{"method": "suffix"}'], "method 'suffix' is not available; use ngram or .*eagle3"),
        (["--speculative_config", '{"method": "medusa"}'], "method 'medusa' is not available; .* use eagle3"),
        (["--speculative_config", '{"method": "eagle", "model": "x"}'], "'eagle' is not available; .* use eagle3"),
        (["--speculative_config", '{"method": "mlp_speculator"}'], "'mlp_speculator' is not available; .* use eagle3"),
        (["--speculative_config", '{"method": ["mtp"]}'], r"\['mtp'\]. is not available"),
        (["--speculative_config", '{"methode": "ngram"}'], "has no 'methode'; it has method"),
        (["--speculative_config", '{"method": "ngram", "gamma": "many"}'], "speculative_config: Expected `int`"),
        (["--speculative_config", '{"method": "draft_model"}'], "a draft model goes together with"),
    ],
)
def test_what_cannot_be_meant_is_refused(argv: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        from_flags(*argv)


def test_what_is_refused_downloads_nothing() -> None:
    def unexpected(name: str) -> Path:
        raise AssertionError(name)

    for given in ({"method": "mtp", "model": "x"}, {"method": "eagle3", "model": "x", "gamma": 99}):
        with pytest.raises(ValueError, match="speculative_config: "):
            speculative_of(given, unexpected)


@pytest.mark.parametrize("given", [DRAFT, None])
def test_a_configuration_is_taken_as_it_is(given: Any) -> None:
    assert speculative_of(given, resolve) is given


def test_the_tokenizer_of_a_draft_model_alone_is_compared() -> None:
    assert draft_tokenizer_folder(DRAFT) == Path("/models/small")
    assert draft_tokenizer_folder(DRAFT, "/tokens") == Path("/tokens")
    for config in (HEAD, MTP, SpeculativeConfig(method="ngram"), None):
        assert draft_tokenizer_folder(config, "/tokens") is None


def test_another_tokenizer_is_named_with_a_token() -> None:
    target = {"a": 0, "b": 1, "c": 2}
    require_same_tokens(target, dict(target), Path("d"))
    with pytest.raises(ModelFilesError, match="1 tokens differ, 'c' is missing instead of 2"):
        require_same_tokens(target, {"a": 0, "b": 1}, Path("d"))
    with pytest.raises(ModelFilesError, match="2 tokens differ, 'a' is 1 instead of 0"):
        require_same_tokens(target, {"a": 1, "b": 0, "c": 2}, Path("d"))
