"""A request whose logits are no numbers ends with an error, and nobody else is the worse for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.async_device import AsyncDevice
from engine_support.fake_core import core_of
from engine_support.tiny_models import engine_config, reference_greedy, save_model

from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest, RequestOutput
from blade_llm.runner import build_runner
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams

BAD = 7
"""A token whose embedding is NaN."""
BLOCKS = 24
HARMLESS = [11, 12, 13, 14, 15]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[TorchRunner, Any]:
    folder: Path = tmp_path_factory.mktemp("damaged")
    reference = save_model(folder, "qwen2", tie_word_embeddings=False)
    config = engine_config(folder, max_num_seqs=4, max_model_len=160, max_batch_tokens=48, max_kv_blocks=BLOCKS)
    runner = build_runner(config)
    with torch.inference_mode():
        runner.model.embedding[BAD] = float("nan")  # not in the file, which would be refused for it
    return runner, reference


def request(name: str, prompt: list[int], **sampling: Any) -> GenerateRequest:
    params = {"max_tokens": 8, "temperature": 0.0, **sampling}
    return GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=SamplingParams(**params))


def outputs_of(core: EngineCore) -> dict[str, list[RequestOutput]]:
    found: dict[str, list[RequestOutput]] = {}
    while core.has_work:
        for output in core.step():
            found.setdefault(output.request_id, []).append(output)
    return found


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 1.0, "seed": 3}, {"temperature": 1.0, "top_p": 0.5, "seed": 3}, {"repetition_penalty": 1.2},
     {"logit_bias": {5: 2.0}}, {"logprobs": 2}, {"beam_width": 2}],
    ids=str,
)  # fmt: skip
def test_only_the_request_with_the_damaged_token_ends(
    model: tuple[TorchRunner, Any], sampling: dict[str, Any], overlap: bool
) -> None:
    runner, reference = model
    device = AsyncDevice(runner) if overlap else runner
    limits: dict[str, Any] = {"num_blocks": BLOCKS, "max_num_seqs": 4, "max_model_len": 160, "max_batch_tokens": 48}
    core = core_of(device, overlap=overlap, eos_token_ids=(1,), **limits)
    expected = reference_greedy(reference, HARMLESS, 8)
    bad = [20, 21, BAD, *range(22, 60)]
    for _ in range(2):  # the second time from the prefix cache, and from blocks that held NaN
        core.add(request("good", HARMLESS))
        core.add(request("bad", bad, **sampling))
        found = outputs_of(core)
        [last] = [output for output in found["bad"] if output.finish_reason is not None]
        assert last.finish_reason == "abort"
        assert last.error is not None
        assert last.error.kind == "invalid_logits"
        assert not any(output.token_ids for output in found["bad"])
        tokens = [token for output in found["good"] for token in output.token_ids]
        assert tokens == expected[: len(tokens)]
        assert found["good"][-1].error is None
    state = core.state(epoch="", sequence=0, draining=False)
    assert (state.running, state.waiting, state.kv_blocks_free) == (0, 0, BLOCKS)
    cache = core.scheduler.cache
    assert cache.match(cache.new_chain(), bad).cached == [], "nobody computes with what it left"
    core.add(request("fills", list(range(30, 30 + 100)), max_tokens=40, ignore_eos=True))  # reuses the blocks
    tokens = [token for output in outputs_of(core)["fills"] for token in output.token_ids]
    assert tokens == reference_greedy(reference, list(range(30, 130)), 40)


def test_a_token_that_does_harm_once_it_is_sampled(model: tuple[TorchRunner, Any]) -> None:
    """It ends in the middle of its output, with the tokens before."""
    runner, _ = model
    core = core_of(runner, num_blocks=BLOCKS, max_num_seqs=4, max_model_len=160, eos_token_ids=(1,))
    core.add(request("r", HARMLESS, logit_bias={BAD: 100.0}))
    outputs = outputs_of(core)["r"]
    assert [output.token_ids for output in outputs] == [[BAD], []]
    assert outputs[-1].error is not None
