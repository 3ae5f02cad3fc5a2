"""What steps report of prompts, against transformers: log-probabilities of their tokens, and pooled hidden states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.families import ROWS, save_row
from engine_support.recording_graphs import RecordingGraphs, prepare_from_device
from engine_support.runner_driver import Driver, prompt_of
from engine_support.tiny_models import engine_config, reference_greedy, reference_logits, save_model
from safetensors.torch import load_file, save_file

from blade_llm.models.config import load_model_config
from blade_llm.models.decoder import Decoder
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.memory import SCORED_AT_ONCE
from blade_llm.runner import build_runner
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs


def prompt_logprobs_of(top: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, prompt_logprobs=top, max_tokens=100)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder: Path = tmp_path_factory.mktemp("qwen2")
    return folder, save_model(folder, "qwen2")


@pytest.fixture(scope="module")
def runner(model: tuple[Path, Any]) -> TorchRunner:
    return build_runner(engine_config(model[0]))


@pytest.fixture
def driver(runner: TorchRunner) -> Driver:
    return Driver(runner)


def check(found: list[TokenLogprobs], reference: Any, prompt: list[int], top: int) -> None:
    """``found`` is what transformers says of the tokens of ``prompt`` but the first."""
    expected = reference_logits(reference, prompt)[:-1].log_softmax(-1)
    assert len(found) == len(prompt) - 1
    best = expected.topk(top)
    for position, entry in enumerate(found):
        assert entry.chosen == pytest.approx(float(expected[position, prompt[position + 1]]), abs=1e-4)
        assert list(entry.token_ids) == best.indices[position].tolist()
        assert entry.logprobs == pytest.approx(best.values[position].tolist(), abs=1e-4)
        above = [int((expected[position] >= entry.chosen + gap).sum()) for gap in (2e-4, -2e-4)]
        assert max(1, above[0]) <= entry.rank <= above[1]


@pytest.mark.parametrize("chunks", [[150], [1, 149], [64, 64, 22], [149, 1], [30] * 5], ids=str)
def test_every_token_of_a_prompt_is_scored_once(model: tuple[Path, Any], driver: Driver, chunks: list[int]) -> None:
    prompt = prompt_of(150)
    assert len(prompt) > 2 * SCORED_AT_ONCE
    request = driver.enter(3, prompt, prompt_logprobs_of(2))
    for count in chunks:
        driver.step({3: count})
    driver.decode([3], 3)
    check(driver.prompt_logprobs[3], model[1], prompt, 2)
    assert request.tokens[150:] == reference_greedy(model[1], prompt, 4)


def test_requests_with_and_without_prompt_outputs_share_a_step(model: tuple[Path, Any], driver: Driver) -> None:
    prompts = {slot: prompt_of(length, seed=slot) for slot, length in {0: 40, 2: 90, 5: 3, 7: 1}.items()}
    other = driver.enter(1, prompt_of(20, seed=9), SamplingParams(temperature=0.0, logprobs=1, max_tokens=100))
    driver.step({1: 20})
    tops = {0: 0, 2: 5, 5: 1, 7: 3}
    for slot, prompt in prompts.items():
        driver.enter(slot, prompt, prompt_logprobs_of(tops[slot]))
    driver.step({1: 1, 0: 40, 2: 11, 5: 3, 7: 1})
    driver.step({1: 1, 0: 1, 5: 1, 7: 1, 2: 79})
    driver.decode([0, 1, 2, 5, 7], 2)
    for slot in (0, 2, 5):
        check(driver.prompt_logprobs[slot], model[1], prompts[slot], tops[slot])
    assert 7 not in driver.prompt_logprobs  # nothing predicts its only token
    assert 1 not in driver.prompt_logprobs
    for slot, prompt in prompts.items():
        sampled = driver.live[slot].tokens[len(prompt) :]
        assert sampled == reference_greedy(model[1], prompt, len(sampled))
    assert other.tokens[20:] == reference_greedy(model[1], other.tokens[:20], 5)
    assert len(other.logprobs) == 5


def test_prompt_outputs_are_removed_behind_the_prompt(driver: Driver) -> None:
    driver.enter(3, prompt_of(20), prompt_logprobs_of(2))
    driver.step({3: 19})
    assert 3 in driver.runner.tables.prompt_outputs
    driver.step({3: 1})
    driver.decode([3], 1)
    assert 3 not in driver.runner.tables.prompt_outputs


def test_output_that_is_computed_again_after_a_preemption_is_not_scored(
    model: tuple[Path, Any], driver: Driver
) -> None:
    prompt = prompt_of(20, seed=3)
    driver.enter(4, prompt + prompt_of(10, seed=4), prompt_logprobs_of(1), prompt=20)
    driver.step({4: 15})
    driver.step({4: 15})
    check(driver.prompt_logprobs[4], model[1], prompt, 1)


def test_a_slot_brings_no_prompt_outputs_of_the_request_before(driver: Driver) -> None:
    driver.enter(6, prompt_of(30), prompt_logprobs_of(1))
    driver.step({6: 10})
    driver.leave(6)
    driver.enter(6, prompt_of(30, seed=1))
    driver.prompt_logprobs.clear()
    driver.step({6: 30})
    driver.branch({6: (6, driver.live[6].tokens)}, prompt_logprobs_of(1), prompt=30)
    driver.step({6: 1})
    assert driver.prompt_logprobs == {}


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.05)])
def test_a_prompt_is_scored_as_the_same_output_was(model: tuple[Path, Any], dtype: str, tolerance: float) -> None:
    """Also where all layers but the last are one native operator."""
    driver = Driver(build_runner(engine_config(model[0], dtype=dtype)))
    prompt = prompt_of(30, seed=11)
    sampling = SamplingParams(temperature=1.0, seed=1, logprobs=0, max_tokens=50)
    written = driver.enter(0, prompt, sampling)
    driver.step({0: 30})
    driver.decode([0], 20)
    driver.enter(1, written.tokens, prompt_logprobs_of(0))
    driver.step({1: len(written.tokens)})
    found = [entry.chosen for entry in driver.prompt_logprobs[1]][29:]
    assert found == pytest.approx([entry.chosen for entry in written.logprobs], abs=tolerance)


def test_few_rows_of_logits_exist_at_once(driver: Driver, runner: TorchRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    assert isinstance(runner.model, Decoder)
    head = runner.model.head
    assert head is not None

    def recorded(hidden: torch.Tensor) -> torch.Tensor:
        sizes.append(len(hidden))
        return head(hidden)

    monkeypatch.setattr(runner.model, "head", recorded)
    driver.enter(0, prompt_of(200), prompt_logprobs_of(20))
    driver.step({0: 200})
    assert sum(sizes) == 200
    assert max(sizes) == SCORED_AT_ONCE


@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
@pytest.mark.parametrize("chunks", [[70], [1, 68, 1], [23, 47]], ids=str)
def test_pooled_states_are_those_of_transformers(
    model: tuple[Path, Any], driver: Driver, pooling: Any, chunks: list[int]
) -> None:
    prompt, short = prompt_of(70, seed=5), prompt_of(9, seed=6)
    talking = driver.enter(0, prompt_of(12, seed=7))
    driver.step({0: 12})
    driver.enter(2, prompt, pooling=pooling)
    driver.enter(1, short, pooling="mean")
    driver.enter(5, short, pooling="last")
    for number, count in enumerate(chunks):
        assert not driver.embeddings
        driver.step({0: 1, 2: count, **({1: 9, 5: 9} if number == len(chunks) - 1 else {})})
    for slot, tokens, kind in ((2, prompt, pooling), (1, short, "mean"), (5, short, "last")):
        states = hidden_states(model[0], tokens)
        expected = {"last": states[-1], "mean": states.mean(0), "cls": states[0]}[kind]
        torch.testing.assert_close(driver.embeddings[slot], expected, atol=1e-4, rtol=1e-4)
    assert talking.tokens[12:] == reference_greedy(model[1], talking.tokens[:12], 1 + len(chunks))


def hidden_states(folder: Path, tokens: list[int]) -> torch.Tensor:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        states: torch.Tensor = model(torch.tensor([tokens])).last_hidden_state[0]
    return states


def test_a_mean_that_was_given_up_is_forgotten(model: tuple[Path, Any], driver: Driver, runner: TorchRunner) -> None:
    prompt = prompt_of(50, seed=8)
    driver.enter(3, prompt_of(40, seed=9), pooling="mean")
    driver.step({3: 20})
    driver.leave(3)
    driver.enter(3, prompt, pooling="mean")
    driver.step({3: 30})
    driver.enter(3, prompt, pooling="mean")  # and the same from its start again
    driver.step({3: 25})
    driver.step({3: 25})
    torch.testing.assert_close(driver.embeddings[3], hidden_states(model[0], prompt).mean(0), atol=1e-4, rtol=1e-4)
    driver.leave(3)
    driver.enter(0, [5])
    driver.step({0: 1})
    assert 3 not in runner.tables.prompt_outputs


def test_a_prompt_of_one_token_is_scored_from_a_graph(model: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blade_llm.runner.forward_pass.prepare", prepare_from_device)
    backend = RecordingGraphs()
    config = engine_config(
        model[0], cuda_graph_batch_sizes=(1, 2, 4), cuda_graph_max_tokens=0, max_kv_blocks=64, max_model_len=256
    )
    runner = TorchRunner(config, load_model_config(config.model_dir), lambda: backend)
    runner.warm_up()
    driver, prompt = Driver(runner), prompt_of(6, seed=10)
    driver.enter(0, prompt, prompt_logprobs_of(1))
    driver.enter(1, [9], pooling="last")
    driver.enter(2, prompt[:1])
    driver.step({0: 1, 1: 1, 2: 1})
    driver.step({0: 5, 2: 1})
    assert backend.replayed == [4]
    check(driver.prompt_logprobs[0], model[1], prompt, 1)
    torch.testing.assert_close(driver.embeddings[1], hidden_states(model[0], [9])[0], atol=1e-4, rtol=1e-4)
    assert driver.live[2].tokens[1:] == reference_greedy(model[1], prompt[:1], 2)


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Qwen3Model"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_for_embeddings_is_its_layers_alone(tmp_path: Path, architecture: str, dtype: str) -> None:
    """Qwen3-Embedding: no ``lm_head``, names below ``model.``, and a server for embeddings reads no output matrix."""
    save_row(tmp_path, ROWS["qwen3"])
    tensors = load_file(tmp_path / "model.safetensors")
    assert "lm_head.weight" in tensors
    save_file(
        {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name != "lm_head.weight"},
        tmp_path / "model.safetensors",
    )
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
    prompt = prompt_of(70, seed=5)
    expected = hidden_states(tmp_path, prompt)[-1]
    runner = build_runner(engine_config(tmp_path, task="embed", dtype=dtype))
    assert runner.model.head is None
    driver = Driver(runner)
    driver.enter(2, prompt, pooling="last")
    driver.step({2: 30})
    driver.step({2: 40})
    if dtype == "float32":
        torch.testing.assert_close(driver.embeddings[2], expected, atol=1e-4, rtol=1e-4)
    else:
        assert float(torch.cosine_similarity(driver.embeddings[2], expected, dim=0)) > 0.999
    message = "--task embed" if architecture == "Qwen3Model" else "lm_head.weight"
    with pytest.raises(ModelFilesError, match=message):
        build_runner(engine_config(tmp_path))
