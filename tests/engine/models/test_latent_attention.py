"""Models with latent attention beyond what each family is proved in: quantised, deterministic, copied blocks, on Triton
kernels, in graphs, and with checkpoints that are not as they should be."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import engine_support.triton_interpreter as triton_interpreter
import pytest
import torch
from engine_support.families import ROWS, save_row
from engine_support.family_proof import Comparison
from engine_support.packed_starts import names_read
from engine_support.recording_graphs import RecordingGraphs
from engine_support.runner_driver import GREEDY, Driver, prompt_of
from engine_support.tiny_models import engine_config, reference_greedy, reference_logits
from safetensors.torch import load_file, save_file

from blade_llm.layers import latent_attention
from blade_llm.layers.latent_prefill import attend_expanded, pays
from blade_llm.models.config import load_model_config
from blade_llm.models.errors import ModelFilesError, UnsupportedSettingError
from blade_llm.runner import build_runner, forward_pass
from blade_llm.runner.device import enable_triton_mla
from blade_llm.runner.kv_cache import allocate_kv_cache, copy_blocks
from blade_llm.runner.startup.kernels import warm_norms_and_gates, warm_paged_attention
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.spec.latent_attention import EXPANDED_CONTEXT, LatentAttentionSpec
from blade_llm.spec.norm import NormSpec
from blade_llm.spec.rope import RopeSpec
from blade_llm.weights.packed_cache import loading
from blade_llm.weights.packed_cache.sources import WritingSource
from blade_llm.weights.sources import SafetensorsWeights

cpu_only = pytest.mark.skipif(triton_interpreter.COMPILED, reason="compares with torch operators on the CPU")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("deepseek")
    return folder, save_row(folder, ROWS["deepseek-v3"])


def test_the_cache_holds_latent_vectors_once(model: tuple[Path, Any]) -> None:
    """Values are a view of the keys, also after copies of blocks in all layers."""
    config = load_model_config(model[0])
    cache = allocate_kv_cache(config.kv, 9, 16, torch.device("cpu"), torch.float32)
    keys = [layer[0] for layer in cache]
    assert sum(key.nbytes for key in keys) == 10 * 16 * 4 * config.kv.token_elements == 10 * 16 * 4 * 3 * 40
    for number, (key, values) in enumerate(cache):
        assert values.shape == (10, 16, 1, 32)
        assert values.data_ptr() == key.data_ptr()
        key.copy_(torch.arange(10.0).view(-1, 1, 1, 1) + 100 * number)
    copy_blocks(cache, torch.tensor([1, 2, 3]), torch.tensor([8, 6, 7]))
    expected = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 2.0, 3.0, 1.0, 9.0])
    for number, (key, values) in enumerate(cache):
        assert torch.equal(key[:, 3, 0, 35], expected + 100 * number)
        assert torch.equal(values[:, 3, 0, 5], expected + 100 * number)


def test_branches_of_a_request_have_blocks_of_their_own(model: tuple[Path, Any]) -> None:
    """As beams and ``n`` make them: 20 tokens shared, 4 of them in a block that both write to."""
    driver, prompt = Driver(build_runner(engine_config(model[0]))), prompt_of(20)
    first = driver.enter(0, prompt)
    driver.step({0: 20})
    driver.branch({3: (0, [*prompt, 77])}, GREEDY, prompt=20)
    second = driver.live[3]
    driver.step({0: 1, 3: 1})
    driver.decode([3, 0], 10)
    assert first.tokens[20:] == reference_greedy(model[1], prompt, 12)
    assert second.tokens[21:] == reference_greedy(model[1], [*prompt, 77], 11)


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3"])
def test_quantised_weights_compute_nearly_the_same_in_less_memory(name: str, tmp_path: Path) -> None:
    """The median over positions: rounding sends a few tokens to other experts."""
    reference = save_row(tmp_path, ROWS[name])
    tokens = prompt_of(75)
    expected = reference_logits(reference, tokens)
    errors, weights = {}, {}
    for quant in ("none", "int8", "int4"):
        runner = build_runner(engine_config(tmp_path, dtype="bfloat16", quant=quant, deterministic=True))
        weights[quant] = runner.memory_plan.weights
        compare = Comparison(runner, reference)
        compare.enter(0, tokens)
        compare.step({0: 75})
        logits = torch.stack([compare.computed[0][position] for position in range(75)])
        errors[quant] = float(((logits - expected).norm(dim=1) / expected.norm(dim=1)).median())
    assert errors["int8"] < 0.15
    assert errors["int8"] < errors["int4"] < 0.7
    assert weights["none"] > weights["int8"] > weights["int4"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_deterministic_logits_are_the_same_bits_in_any_batch(model: tuple[Path, Any], dtype: str) -> None:
    driver, prompt = Driver(build_runner(engine_config(model[0], dtype=dtype, deterministic=True))), prompt_of(90)
    driver.enter(0, prompt)
    driver.step({0: 90})
    driver.decode([0], 3)
    alone = driver.logits[0].clone()
    driver.leave(0)
    for slot in range(1, 4):
        driver.enter(slot, prompt_of(30 + slot, seed=slot))
    driver.enter(7, prompt)
    driver.step({1: 31, 7: 50})
    driver.step({1: 1, 2: 32, 7: 40})
    driver.step({1: 1, 2: 1, 3: 33, 7: 1})
    driver.decode([7, 3, 1], 2)
    assert torch.equal(driver.logits[7], alone)


def test_which_form_multiplies_less() -> None:
    """With DeepSeek's sizes: whole prompts and long chunks are expanded, decodes and short chunks are not."""
    rope, norm = RopeSpec(1e4, 64), NormSpec(1e-6)
    spec = LatentAttentionSpec(16, 512, 128, 64, 128, 192**-0.5, rope, norm)
    assert pays(spec, 2, 2)
    assert pays(spec, 256, 2048)
    assert pays(spec, 2048, EXPANDED_CONTEXT)
    assert not pays(spec, 1, 1)
    assert not pays(spec, 64, 2048)
    assert not pays(spec, 2048, EXPANDED_CONTEXT + 1)


@pytest.mark.parametrize("deterministic", [False, True])
def test_prefills_are_expanded_beside_decodes(
    model: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch, deterministic: bool
) -> None:
    """In one step, with the same logits, but where each token must go the same way."""
    taken: list[tuple[int, int]] = []

    def recorded(spec: Any, prefill: Any, queries: torch.Tensor, *rest: Any) -> torch.Tensor:
        taken.append((len(queries), prefill.length))
        return attend_expanded(spec, prefill, queries, *rest)

    driver = Driver(build_runner(engine_config(model[0], deterministic=deterministic)))
    monkeypatch.setattr(latent_attention, "attend_expanded", recorded)
    prompts = {slot: prompt_of(length, seed=slot) for slot, length in {0: 9, 1: 70, 2: 33}.items()}
    for slot, prompt in prompts.items():
        driver.enter(slot, prompt)
    for counts in ({0: 9}, {1: 30, 0: 1}, {0: 1, 1: 35, 2: 33}, {1: 5, 2: 1}):
        driver.step(counts)
    for slot, logits in driver.logits.items():
        exact = reference_logits(model[1], driver.live[slot].tokens[:-1])[-1]
        torch.testing.assert_close(logits, exact, atol=1e-4, rtol=1e-4)
    in_each_layer = [(9, 9)] * 3 + [(30, 30)] * 3 + [(35, 65), (33, 33)] * 3
    assert taken == ([] if deterministic else in_each_layer)


def serve(driver: Driver) -> dict[int, list[int]]:
    """Chunks alone, chunks beside decodes, decodes alone."""
    for slot, length in enumerate((3, 40, 17)):
        driver.enter(slot, prompt_of(length, seed=slot))
    for counts in ({0: 3}, {0: 1, 1: 20}, {0: 1, 1: 20, 2: 10}, {0: 1, 1: 1, 2: 7}):
        driver.step(counts)
    driver.decode([0, 1, 2], 2)
    driver.decode([2], 1)
    return {slot: request.tokens for slot, request in driver.live.items()}


@cpu_only
@pytest.mark.parametrize("name", ["deepseek-v2-lite", "deepseek-v3"])
def test_triton_kernels_sample_the_same_and_compile_nothing_in_service(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_row(tmp_path, ROWS[name])
    runner = build_runner(engine_config(tmp_path, max_model_len=128))
    expected = serve(Driver(runner))
    triton_interpreter.use_triton(monkeypatch)
    monkeypatch.setattr(forward_pass, "expanded_prefills", lambda *arguments: None)  # as on a GPU
    variants = triton_interpreter.record_launches(monkeypatch)
    decoder, cache = runner.model_config.decoder, runner._kv_cache[0]
    warm_norms_and_gates(decoder, runner.dtype, *cache)
    warm_paged_attention(decoder, cache, runner.tables.block_table, False)
    ours = {"_rope_write_latent_kernel", "_rms_norm_kernel", "attend", "combine"}
    warmed = {variant for variant in variants if variant[0] in ours}
    variants.clear()
    assert serve(Driver(runner)) == expected
    used = {variant for variant in variants if variant[0] in ours}
    assert {variant[0] for variant in used} >= ours - {"combine"}
    assert used <= warmed


@cpu_only
def test_replayed_graphs_sample_the_same(model: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"cuda_graph_batch_sizes": (1, 4), "cuda_graph_token_sizes": (8, 40)}
    config = engine_config(model[0], max_model_len=128, **sizes)
    expected = serve(Driver(build_runner(config)))
    triton_interpreter.use_triton(monkeypatch)
    backend = RecordingGraphs()
    runner = TorchRunner(config, load_model_config(config.model_dir), lambda: backend)
    runner.warm_up()
    assert serve(Driver(runner)) == expected
    assert len(backend.replayed) == 7


def test_the_correction_bias_is_not_rounded(model: tuple[Path, Any]) -> None:
    """In bf16 it would send tokens to other experts."""
    runner = build_runner(engine_config(model[0], dtype="bfloat16"))
    stored = load_file(model[0] / "model.safetensors")["model.layers.2.mlp.gate.e_score_correction_bias"]
    kept = runner.model.layers[2].mlp.correction_bias
    assert torch.equal(kept, stored)
    assert not torch.equal(kept, stored.bfloat16().float())


@pytest.mark.skipif(not loading.can_be_kept(torch.device("cpu"), torch.bfloat16), reason="no native kernels here")
@pytest.mark.parametrize("quant", ["none", "int4"])
def test_a_second_start_takes_packed_weights(
    model: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quant: str
) -> None:
    """What is multiplied by head is read from the checkpoint again, beside norms, routers and embedding."""
    threads: list[Any] = []
    finish = WritingSource.finish
    monkeypatch.setattr(WritingSource, "finish", lambda source: threads.append(finish(source)))
    monkeypatch.setattr(loading, "LEAST_BYTES", 0)
    options = {"dtype": "bfloat16", "quant": quant, "packed_cache_dir": str(tmp_path), "packed_cache_bytes": 1 << 30}
    config = engine_config(model[0], **options)
    prompt = prompt_of(40)
    first = Driver(build_runner(config)).generate(0, prompt, 5)
    threads[0].join()
    read = names_read(monkeypatch)
    assert Driver(build_runner(config)).generate(0, prompt, 5) == first
    assert len(threads) == 1
    assert {name.partition("layers.")[2][1:] for name in read} <= {".mlp.gate.weight"}, "oneDNN keeps routers in fp32"


def test_checkpoints_that_lack_a_tensor_or_have_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    row = ROWS["deepseek-v3"]
    save_row(tmp_path, replace(row, fields={**row.fields, "num_mtp_layers": 1}))
    tensors = load_file(tmp_path / "model.safetensors")
    config = load_model_config(tmp_path)
    last = {name: tensor for name, tensor in tensors.items() if "layers.2." in name}
    more = {name.replace("layers.2.", "layers.3."): tensor.clone() for name, tensor in last.items()}
    save_file({**tensors, **more}, tmp_path / "model.safetensors")
    with caplog.at_level(logging.WARNING):
        SafetensorsWeights(tmp_path, config, torch.device("cpu"), torch.float32)
    said = f"layers for multi-token prediction are for --decode_algo mtp alone: model.layers.3 ({len(more)} tensor(s))"
    assert caplog.messages == [f"{tmp_path}: {said}"]
    name = "model.layers.1.self_attn.kv_b_proj.weight"
    tensors[name] = tensors[name][1:].contiguous()
    del tensors["model.layers.2.mlp.gate.e_score_correction_bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelFilesError) as caught:
        SafetensorsWeights(tmp_path, config, torch.device("cpu"), torch.float32)
    assert "missing: model.layers.2.mlp.gate.e_score_correction_bias" in str(caught.value)
    assert f"{name} is [223, 32] in model.safetensors, config.json asks for [224, 32]" in str(caught.value)


def test_enable_triton_mla(model: tuple[Path, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        build_runner(engine_config(model[0], enable_triton_mla=True))
    assert [line for line in caplog.messages if "--enable_triton_mla changes nothing on a CPU" in line]
    gpu = torch.device("cuda")
    assert "by Triton kernels" in enable_triton_mla(True, "ragged_flash", gpu)
    assert "no multi-head latent attention" in enable_triton_mla(False, "paged", gpu)
    with pytest.raises(UnsupportedSettingError, match="--attn_cls paged"):
        enable_triton_mla(True, "paged", gpu)
