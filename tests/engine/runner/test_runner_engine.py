"""Scheduler, cache and the real runner together: what a request gets never depends on what runs beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.tiny_models import engine_config, reference_greedy, save_model

from blade_llm.config import EngineConfig
from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.engine.messages import GenerateRequest
from blade_llm.runner import build_runner
from blade_llm.sampling.parameters import SamplingParams


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder: Path = tmp_path_factory.mktemp("qwen2")
    return folder, save_model(folder, "qwen2")


def core_for(config: EngineConfig) -> EngineCore:
    runner = build_runner(config)
    info = EngineInfo(
        model="tiny", max_model_len=runner.max_model_len, device=str(runner.device), dtype=runner.dtype_name
    )
    return EngineCore.from_config(config, runner, info, num_blocks=runner.num_blocks)


def run(core: EngineCore, requests: list[GenerateRequest], stagger: int = 0) -> dict[str, list[int]]:
    """Tokens by request id; a further request arrives every ``stagger`` steps, or all at once."""
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    waiting = list(requests)
    for step in range(20_000):
        if waiting and (stagger == 0 or step % stagger == 0):
            for request in waiting if stagger == 0 else waiting[:1]:
                core.add(request)
            waiting = [] if stagger == 0 else waiting[1:]
        if not core.has_work and not waiting:
            return tokens
        for output in core.step():
            assert output.error is None
            tokens[output.request_id] += output.token_ids
    raise AssertionError("did not finish")


def mixed_requests(count: int, longest_prompt: int = 150, longest_output: int = 40) -> list[GenerateRequest]:
    generator = torch.Generator().manual_seed(count)
    shared = torch.randint(2, 199, (50,), generator=generator).tolist()
    requests = []
    for i in range(count):
        limits = longest_prompt, longest_output
        length, output = (int(torch.randint(1, limit, (1,), generator=generator)) for limit in limits)
        prompt = torch.randint(2, 199, (length,), generator=generator).tolist()
        temperature = 0.0 if i % 4 else 0.8
        sampling = SamplingParams(
            temperature=temperature, seed=i, top_p=0.9 if i % 8 else 1.0, max_tokens=output, ignore_eos=True
        )
        requests.append(
            GenerateRequest(
                request_id=str(i), prompt_token_ids=(shared + prompt if i % 5 == 0 else prompt), sampling=sampling
            )
        )
    return requests


def test_64_concurrent_requests_get_what_each_gets_alone(model: tuple[Path, Any]) -> None:
    folder, reference = model
    requests = mixed_requests(64)
    together = run(core_for(engine_config(folder, max_num_seqs=64)), requests, stagger=1)
    alone = core_for(engine_config(folder, max_num_seqs=1, enable_prompt_cache=False))
    for request in requests:
        assert together[request.request_id] == run(alone, [request])[request.request_id]
        assert len(together[request.request_id]) == request.sampling.max_tokens
    greedy = [request for request in requests if request.sampling.temperature == 0.0]
    for request in greedy[:6]:
        expected = reference_greedy(reference, request.prompt_token_ids, request.sampling.max_tokens)
        assert together[request.request_id] == expected


def test_a_cache_of_40_blocks_preempts_and_changes_nothing(model: tuple[Path, Any]) -> None:
    folder, _ = model
    requests = mixed_requests(24, longest_prompt=40, longest_output=120)
    core = core_for(engine_config(folder, max_num_seqs=24, max_kv_blocks=40))
    assert run(core, requests) == run(core_for(engine_config(folder, max_num_seqs=24)), requests)
    assert core.state(epoch="", sequence=0, draining=False).preemptions_total > 0


def test_a_repeated_prefix_is_not_computed_again(model: tuple[Path, Any]) -> None:
    folder, reference = model
    core = core_for(engine_config(folder))
    prompt = torch.randint(2, 199, (700,), generator=torch.Generator().manual_seed(0)).tolist()
    sampling = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    for name, tokens in (("first", prompt), ("second", [*prompt[:690], 7, 8, 9])):
        request = GenerateRequest(request_id=name, prompt_token_ids=tokens, sampling=sampling)
        assert run(core, [request])[name] == reference_greedy(reference, tokens, 5)
    assert core.state(epoch="", sequence=0, draining=False).cached_tokens_total == 43 * 16
