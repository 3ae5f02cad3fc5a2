"""A context of 131,072 tokens on a CPU, with each way of stretching the rotation: after a prefill in chunks, the logits
of its last token are those of transformers."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.families import Row, save_row
from engine_support.runner_driver import Driver
from engine_support.tiny_models import engine_config
from transformers import DynamicCache

from blade_llm.engine.build import build_core
from blade_llm.engine.messages import GenerateRequest
from blade_llm.runner import build_runner
from blade_llm.sampling.parameters import SamplingParams

LENGTH = 131_072
CHUNK = 2_048
SHAPE: dict[str, Any] = {
    "vocab_size": 199, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": LENGTH, "pad_token_id": 0,
    "tie_word_embeddings": False,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 32768}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0 + i / 10 for i in range(8)],
            "long_factor": [1.5 + 4 * i for i in range(8)]}  # fmt: skip
# transformers chooses factors by the positions of a chunk: the first one is beyond the original length already
ROWS = {
    "llama3": Row("Llama", "llama3", {**SHAPE, "rope_parameters": LLAMA3}),
    "yarn": Row("Qwen2", "yarn", {**SHAPE, "rope_parameters": YARN}),
    "longrope": Row("Phi3", "longrope", {**SHAPE, "original_max_position_embeddings": CHUNK // 2,
                                         "rope_parameters": LONGROPE}),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("length", [3 * CHUNK, pytest.param(LENGTH, marks=pytest.mark.soak)])
def test_the_last_tokens_logits_after_a_long_prefill(tmp_path: Path, name: str, length: int) -> None:
    reference = save_row(tmp_path, ROWS[name])
    runner = build_runner(engine_config(tmp_path, max_batch_tokens=CHUNK, max_num_seqs=1, kv_cache_bytes=64 << 20))
    assert runner.max_model_len == LENGTH
    driver = Driver(runner)
    prompt = torch.randint(2, 199, (length,), generator=torch.Generator().manual_seed(0)).tolist()
    before, started = _peak_memory(), time.perf_counter()
    driver.enter(0, prompt)
    for _ in range(length // CHUNK):  # each is a step of its own, so that a keyboard's interrupt ends the test
        driver.step({0: CHUNK})
    taken, memory = time.perf_counter() - started, _peak_memory() - before
    print(f"{name}: {length} tokens in {taken:.1f} s, peak memory + {memory / 2**20:.0f} MiB")
    assert memory < 512 << 20, "what a step needs does not grow with the square of the length"
    expected = _reference_logits(reference, prompt)
    torch.testing.assert_close(driver.logits[0], expected, rtol=1e-3, atol=2e-3)


def test_a_long_prefill_that_is_given_up_leaves_the_engine_to_the_next_request(tmp_path: Path) -> None:
    save_row(tmp_path, ROWS["llama3"])
    core = build_core(engine_config(tmp_path, max_batch_tokens=CHUNK, max_num_seqs=1, kv_cache_bytes=64 << 20))
    sampling = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    core.add(GenerateRequest(request_id="long", prompt_token_ids=[5] * (LENGTH - 2), sampling=sampling))
    for _ in range(3):
        assert core.step() == []
    core.abort(["long"])
    core.add(GenerateRequest(request_id="next", prompt_token_ids=[7] * 40, sampling=sampling))
    steps, tokens = 0, list[int]()
    while core.has_work:
        steps += 1
        for output in core.step():
            assert output.request_id == "next"
            tokens += output.token_ids
    assert len(tokens) == 2
    assert steps <= 4


@torch.inference_mode()
def _reference_logits(model: Any, prompt: list[int]) -> torch.Tensor:
    """In the one layer there is, keys and values of a token depend on no other token: they come from chunks that see
    nothing of each other, and only the last token looks at all of them."""
    cache, tokens = DynamicCache(), torch.tensor([prompt])
    for begin in range(0, len(prompt) - 1, CHUNK):
        positions = torch.arange(begin, min(begin + CHUNK, len(prompt) - 1))
        layer = model(tokens[:, positions], position_ids=positions[None], use_cache=True).past_key_values.layers[0]
        cache.update(layer.keys, layer.values, 0)
    last = torch.tensor([[len(prompt) - 1]])
    logits: torch.Tensor = model(tokens[:, -1:], position_ids=last, past_key_values=cache, use_cache=True).logits[0, -1]
    return logits


def _peak_memory() -> int:
    """Bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
