"""Scheduler, cache and the real runner on everything a request can set at once: grammar specs with forced tokens,
samples of one prompt, biases, scored prompts, pooled states. Each gets in company, in little memory, what it gets
alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from engine_support.feature_load import PLACES, Result, check_equal, core_for, requests_of, restricted, run
from engine_support.tiny_models import engine_config, save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("qwen2")
    save_model(folder, "qwen2")
    return folder


REQUESTS = restricted(requests_of(24))


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Result]:
    """Every sample a request of its own, one after the other."""
    core = core_for(engine_config(folder, max_num_seqs=1, max_model_len=256, enable_prompt_cache=False))
    results: dict[str, Result] = {}
    for request in REQUESTS:
        for index, name in enumerate((request.request_id, *request.sibling_ids)):
            single = msgspec.structs.replace(request, request_id=name, sibling_ids=[], sample_index=index)
            results |= run(core, [single], stagger=1)
    return results


@pytest.mark.parametrize("blocks", [None, 32], ids=["room", "preempting"])
def test_together_as_alone(folder: Path, alone: dict[str, Result], blocks: int | None) -> None:
    core = core_for(engine_config(folder, max_num_seqs=24, max_model_len=256, max_kv_blocks=blocks))
    together = run(core, REQUESTS, stagger=1)
    assert (core.state(epoch="", sequence=0, draining=False).preemptions_total > 0) == (blocks is not None)
    assert together.keys() == alone.keys()
    for name, result in together.items():
        check_equal(result, alone[name])


def test_each_gets_what_it_requested(alone: dict[str, Result]) -> None:
    for request in REQUESTS:
        result = alone[request.request_id]
        assert (result.embedding is not None) == bool(request.pooling)
        if request.sampling.prompt_logprobs is not None:
            assert result.prompt is not None
            assert len(result.prompt) == len(request.prompt_token_ids)
        if request.sampling.grammar_spec is not None:
            assert len(result.tokens) > 3
            assert all(token in place for token, place in zip(result.tokens, PLACES, strict=False))
    samples = {tuple(alone[name].tokens) for name in ("6", "6.1", "6.2", "6.3")}
    assert REQUESTS[6].sampling.temperature == 0.0 or len(samples) == 4
