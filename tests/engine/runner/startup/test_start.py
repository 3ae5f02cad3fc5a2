"""What the runner does at its start: memory, number types, threads, bad model folders."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engine_support.runner_driver import Driver
from engine_support.tiny_models import engine_config, load_reference, reference_logits, save_model
from safetensors.torch import load_file, save_file

from blade_llm.kernels import native
from blade_llm.kernels.backend import torch_only
from blade_llm.kernels.linear import native as native_linear
from blade_llm.models.errors import ModelFilesError, NotEnoughMemoryError, UnsupportedModelError
from blade_llm.runner import build_runner
from blade_llm.runner.startup.threads import (
    SPINS,
    cpu_quota,
    physical_cores,
    requested_threads,
    spin_briefly,
    usable_cores,
)
from blade_llm.runner.torch_runner import TorchRunner

BLOCK_BYTES = 2 * 3 * 2 * 8 * 4 * 16  # keys and values, layers, kv heads, head dim, fp32, tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen2")
    save_model(path, "qwen2", tie_word_embeddings=False)
    return path


@pytest.fixture
def broken(folder: Path, tmp_path: Path) -> Path:
    """A copy of the model to damage."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_memory_plan(folder: Path) -> None:
    runner = build_runner(engine_config(folder, kv_cache_bytes=100 * BLOCK_BYTES + 5))
    plan = runner.memory_plan
    assert runner.num_blocks == plan.kv_blocks == 100
    assert plan.kv_block_bytes == BLOCK_BYTES
    assert plan.kv_cache == 100 * BLOCK_BYTES
    assert plan.kv_tokens == 1600
    assert plan.max_model_len == runner.max_model_len == 1024
    assert plan.concurrent_at_max_len == pytest.approx(100 / 64)
    stored = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert stored * 0.9 < plan.weights < stored + 1024 * 8 * 4 + 1
    assert plan.activation_peak > 0
    assert (plan.device, plan.free) == ("cpu", None)
    assert list(runner.timings) == ["import", "operators", "weights", "warm-up"]


def test_cache_is_no_larger_than_all_slots_can_use(folder: Path) -> None:
    runner = build_runner(engine_config(folder, max_model_len=100, max_num_seqs=3))
    assert runner.num_blocks == 3 * 7


def test_max_kv_blocks_shortens_an_automatic_length(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        runner = build_runner(engine_config(folder, max_kv_blocks=40))
    assert (runner.num_blocks, runner.max_model_len) == (40, 640)
    assert "--kv_cache_bytes" in caplog.text


def test_a_requested_length_that_does_not_fit_is_refused(folder: Path) -> None:
    config = engine_config(folder, max_model_len=512, kv_cache_bytes=31 * BLOCK_BYTES)
    with pytest.raises(NotEnoughMemoryError, match=f"--kv_cache_bytes to {32 * BLOCK_BYTES}.*--max_model_len to 496"):
        build_runner(config)
    with pytest.raises(NotEnoughMemoryError, match="max_kv_blocks allows 5; raise it to 32"):
        build_runner(engine_config(folder, max_model_len=512, max_kv_blocks=5))


def test_not_even_one_block(folder: Path) -> None:
    with pytest.raises(NotEnoughMemoryError, match="--kv_cache_bytes"):
        build_runner(engine_config(folder, kv_cache_bytes=BLOCK_BYTES - 1))


def test_a_length_beyond_the_model(folder: Path) -> None:
    with pytest.raises(ValueError, match="1024"):
        build_runner(engine_config(folder, max_model_len=2000))


def test_missing_tensor(broken: Path) -> None:
    tensors = load_file(broken / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, broken / "model.safetensors")
    with pytest.raises(ModelFilesError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        build_runner(engine_config(broken))


def test_tensor_of_wrong_shape(broken: Path) -> None:
    tensors = load_file(broken / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(65)
    save_file(tensors, broken / "model.safetensors")
    with pytest.raises(ModelFilesError, match=r"model\.norm\.weight"):
        build_runner(engine_config(broken))


def test_truncated_weights(broken: Path) -> None:
    data = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelFilesError, match="truncated"):
        build_runner(engine_config(broken))


def test_unknown_architecture(broken: Path) -> None:
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "architectures": ["OtherForCausalLM"]}))
    with pytest.raises(UnsupportedModelError, match="OtherForCausalLM"):
        build_runner(engine_config(broken))


def test_dummy_weights_need_no_files(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    config = engine_config(tmp_path, load_format="dummy")
    first, second = (Driver(build_runner(config)).generate(0, [5, 6, 7], 5) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit_checkpoint_computed_in_fp32(tmp_path: Path, stored: torch.dtype) -> None:
    reference = save_model(tmp_path, "qwen2", dtype=stored)
    driver = Driver(build_runner(engine_config(tmp_path)))
    prompt = list(range(20, 60))
    driver.enter(0, prompt)
    driver.step({0: 40})
    torch.testing.assert_close(driver.logits[0], reference_logits(reference, prompt)[-1], atol=1e-4, rtol=1e-4)


def test_bf16_is_as_good_as_transformers_in_bf16(tmp_path: Path) -> None:
    """The distance to fp32 of ours is at most a little more than that of theirs."""
    reference = save_model(tmp_path, "qwen2", dtype=torch.bfloat16)
    driver = Driver(build_runner(engine_config(tmp_path, dtype="bfloat16")))
    prompt = list(range(20, 110))
    exact = reference_logits(reference, prompt)
    theirs = reference_logits(load_reference(tmp_path, torch.bfloat16), prompt)[-1].float()
    request = driver.enter(0, prompt)
    driver.step({0: 90})
    noise = (theirs - exact[-1]).abs().max()
    assert (driver.logits[0] - exact[-1]).abs().max() < 1.5 * noise
    driver.decode([0], 4)
    exact = reference_logits(reference, request.tokens[:-1])[-1]
    assert (driver.logits[0] - exact).abs().max() < 2 * noise


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_requested_threads_win() -> None:
    assert requested_threads(3, {"OMP_NUM_THREADS": "7"}) == 3
    assert requested_threads(None, {"OMP_NUM_THREADS": "7"}) == 7
    assert requested_threads(None, {"OMP_NUM_THREADS": "many"}) is None


@pytest.mark.parametrize(("short", "num_threads", "expected"), [(10.0, None, 1), (0.0, None, 2), (10.0, 2, 2)])
def test_a_small_model_keeps_to_one_thread_unless_more_are_requested(
    short: float, num_threads: int | None, expected: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("blade_llm.runner.torch_runner.rank_cores", lambda ranks: 2)
    monkeypatch.setattr("blade_llm.runner.startup.autotune.SHORT_STEP_SECONDS", short)
    before = torch.get_num_threads()
    try:
        build_runner(engine_config(folder, num_threads=num_threads))
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(torch_only() or not native_linear.is_available(), reason="no native linear layers here")
def test_linear_layers_are_tuned_once_for_each_kind_of_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second start finds what the first one measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native_linear, "_kinds", set())
    measured: list[str] = []
    monkeypatch.setattr(native_linear, "measure_prefetch", lambda kind: measured.append(kind) or 512)
    monkeypatch.setattr(native_linear, "measure_integers", lambda: measured.append("integers") or False)
    for _ in range(2):
        build_runner(engine_config(folder, dtype="bfloat16", quant="int4"))
        assert native_linear.kinds_in_use() == ["int4"]
    choice = ["integers"] if native.isa() == "avx512_bf16" else []
    assert measured == ["int4", *choice]


def test_threads_are_cores_not_hyper_threads(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        write(tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings)
    assert physical_cores([0, 1, 2, 3], tmp_path) == 2
    assert physical_cores([0, 2], tmp_path) == 1
    assert physical_cores([0, 1, 2, 3], tmp_path / "nothing") == 4


def test_threads_stay_within_the_quota(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/pod/container\n")
    assert cpu_quota(tmp_path) is None
    write(tmp_path / "sys/fs/cgroup/pod/container/cpu.max", "max 100000\n")
    write(tmp_path / "sys/fs/cgroup/pod/cpu.max", "150000 100000\n")
    assert cpu_quota(tmp_path) == 1.5
    assert usable_cores(tmp_path) == 1
    write(tmp_path / "proc/self/cgroup", "5:cpu,cpuacct:/job\n")
    write(tmp_path / "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1")
    write(tmp_path / "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000")
    assert cpu_quota(tmp_path) is None
    write(tmp_path / "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "400000")
    assert cpu_quota(tmp_path) == 4.0


def test_threads_spin_briefly_unless_the_user_has_set_it() -> None:
    for given, expected in (
        ({}, {"GOMP_SPINCOUNT": str(SPINS)}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
        ({"GOMP_SPINCOUNT": "100"}, {"GOMP_SPINCOUNT": "100"}),
    ):
        environment = dict(given)
        spin_briefly(environment)
        assert environment == expected


def test_the_engine_bounds_spinning_before_torch(folder: Path) -> None:
    """In a fresh process, because only the first import of torch reads it."""
    code = """
import sys, os
from blade_llm.config import EngineConfig
from blade_llm.engine.build import build_core
assert "torch" not in sys.modules
real_import = __import__("builtins").__import__
def watch(name, *args, **kwargs):
    if name == "torch" and "torch" not in sys.modules:
        print("spins", os.environ.get("GOMP_SPINCOUNT"))
    return real_import(name, *args, **kwargs)
__import__("builtins").__import__ = watch
build_core(EngineConfig(model=sys.argv[1], served_names=("x",), num_threads=1, kv_cache_bytes=1 << 24))
assert "transformers" not in sys.modules
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    result = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, env=environment, check=True
    )
    assert result.stdout.splitlines()[0] == f"spins {SPINS}"


def test_an_engine_that_cannot_sample_a_token_never_starts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So one that is ready has generated: a rollout counts on it."""
    steps: list[int] = []
    launch = TorchRunner.launch_sampling

    def sample(self: TorchRunner, *args: object) -> object:
        steps.append(1)
        if len(steps) == 2:  # a prompt first, then a decode
            raise RuntimeError("no token")
        return launch(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(TorchRunner, "launch_sampling", sample)
    with pytest.raises(RuntimeError, match="no token"):
        build_runner(engine_config(folder))
