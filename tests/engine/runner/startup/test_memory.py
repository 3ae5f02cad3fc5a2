"""Where memory goes: a GPU's share, a step's worst case, and on CPU a cache that costs nothing until it is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from blade_llm.cache.sizing import kv_block_bytes
from blade_llm.config import EngineConfig
from blade_llm.kernels.native.memory import HugePageArena, give_back
from blade_llm.models.config import ModelConfig, load_model_config
from blade_llm.models.errors import NotEnoughMemoryError, UnsupportedSettingError
from blade_llm.runner.device import choose_attention
from blade_llm.runner.kv_cache import allocate_kv_cache, give_back_kv_cache
from blade_llm.runner.startup.autotune_cache import cache_file, cached_measurement
from blade_llm.runner.startup.gpu_profile import full_steps
from blade_llm.runner.startup.host_memory import give_back_free_memory, huge_pages_available, use_huge_pages
from blade_llm.runner.startup.memory_plan import GpuMemory, memory_plan, plan_kv_cache

GIB = 1 << 30
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def model(tmp_path: Path) -> ModelConfig:
    """Shaped like Qwen2.5-7B."""
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
        "max_position_embeddings": 32768, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    return load_model_config(tmp_path)


def gpu(**changes: float) -> GpuMemory:
    """80 GiB, 15 of weights and kernels, nobody else."""
    values = {"total": 80 * GIB, "free": 65 * GIB, "lasting": 15 * GIB, "activation_peak": 3 * GIB, "graphs": GIB}
    return GpuMemory(**{**values, "share": 0.9, **changes})  # type: ignore[arg-type]


def test_the_cache_gets_what_the_share_leaves() -> None:
    assert gpu().kv_cache == int(80 * GIB * 0.9) - 19 * GIB
    assert gpu(share=0.5).kv_cache == 40 * GIB - 19 * GIB
    assert gpu(share=0.2).kv_cache == 0


def test_what_other_processes_hold_is_not_given_away() -> None:
    assert gpu(free=30 * GIB).kv_cache == 26 * GIB
    assert gpu(share=0.4, free=30 * GIB).kv_cache == 32 * GIB - 19 * GIB  # half of the GPU is the other's


def test_a_requested_cache_must_fit() -> None:
    assert gpu().kv_cache_for(None) == gpu().kv_cache
    assert gpu().kv_cache_for(5 * GIB) == 5 * GIB
    with pytest.raises(NotEnoughMemoryError, match=f"lower it to {21 * GIB}, or raise --max_gpu_memory_utilization"):
        gpu(share=0.5).kv_cache_for(22 * GIB)


def planned(model: ModelConfig, memory: GpuMemory, **config: int) -> object:
    settings = EngineConfig(model="m", served_names=("m",), **config)  # type: ignore[arg-type]
    return plan_kv_cache(settings, model, "bfloat16", memory.kv_cache, memory.enlarge)


def test_too_small_a_share_names_the_one_that_would_do(model: ModelConfig) -> None:
    needed = 32768 // 16 * kv_block_bytes(model, "bfloat16")
    with pytest.raises(NotEnoughMemoryError, match=r"--max_gpu_memory_utilization to (0\.\d+)") as caught:
        planned(model, gpu(share=0.25), max_model_len=32768)
    share = float(str(caught.value).split("--max_gpu_memory_utilization to ")[1].split(",")[0])
    assert gpu(share=share).kv_cache >= needed > gpu(share=share - 0.001).kv_cache
    planned(model, gpu(share=share), max_model_len=32768)


def test_a_full_gpu_says_how_much_is_lacking_and_who_has_it(model: ModelConfig) -> None:
    memory = gpu(free=4 * GIB + 100)
    with pytest.raises(NotEnoughMemoryError, match="lacks") as caught:
        planned(model, memory, max_model_len=32768)
    needed = 32768 // 16 * kv_block_bytes(model, "bfloat16")
    assert f"lacks {needed - 100} bytes" in str(caught.value)
    assert f"other processes hold {61 * GIB - 100}" in str(caught.value)
    for flag in ("--ragged_flash_max_batch_tokens", "--max_num_seqs", "--disable_cuda_graph"):
        assert flag in str(caught.value)


def test_the_plan_reports_graphs(model: ModelConfig) -> None:
    kv = plan_kv_cache(EngineConfig(model="m", served_names=("m",)), model, "bfloat16", 8 * GIB)
    assert memory_plan(kv, weights=1, activation_peak=2, graphs=3).graphs == 3


def test_the_plan_reports_what_it_leaves_of_a_gpu(model: ModelConfig) -> None:
    kv = plan_kv_cache(EngineConfig(model="m", served_names=("m",)), model, "bfloat16", 8 * GIB)
    plan = memory_plan(kv, weights=1, activation_peak=2, device="cuda", spare=gpu().spare)
    assert gpu().spare == 61 * GIB
    assert (plan.device, plan.free) == ("cuda", 61 * GIB - plan.kv_cache)
    assert memory_plan(kv, weights=1, activation_peak=2, spare=gpu(free=GIB).spare).free == 0
    assert memory_plan(kv, weights=1, activation_peak=2, device="cpu").free is None


@pytest.mark.parametrize(
    ("tokens", "sequences", "length"), [(2048, 64, 32768), (2048, 256, 1000), (100, 256, 4096), (512, 8, 20), (7, 1, 4)]
)
def test_full_steps_fill_the_budget_with_many_and_with_few(tokens: int, sequences: int, length: int) -> None:
    many, few = full_steps(tokens, sequences, length)
    assert len(many) == min(sequences, tokens)
    for lengths in (many, few):
        assert sum(lengths) <= tokens
        assert len(lengths) <= sequences
        assert 1 <= min(lengths) <= max(lengths) <= max(1, length - 3)
    assert sum(few) == min(tokens, sequences * max(few))


def test_a_cpu_cache_uses_memory_only_where_it_is_written(model: ModelConfig) -> None:
    blocks = GIB // kv_block_bytes(model, "bfloat16")
    before = _resident()
    cache = allocate_kv_cache(model.kv, blocks, 16, CPU, torch.bfloat16)
    assert len(cache) == 28
    keys, values = cache[3]
    assert keys.shape == values.shape == (blocks + 1, 16, 4, 128)
    assert keys.is_contiguous()
    assert sum(key.nbytes + value.nbytes for key, value in cache) >= 0.99 * GIB
    assert bool((values[-1] == 0).all())
    assert _resident() - before < 64 << 20
    keys[:] = 1.0
    assert _resident() - before > keys.nbytes // 2
    give_back_kv_cache(cache)
    assert _resident() - before < 64 << 20
    assert bool((keys == 0).all())


def test_pages_that_others_have_a_part_of_stay() -> None:
    arena = HugePageArena()
    pieces = [arena.empty(size) for size in (100, 3 * 4096 + 77, 64, 4096)]
    for piece in pieces:
        piece.fill_(7)
    for index in (1, 2):
        give_back(pieces[index])
    assert [int(piece.sum()) for piece in pieces] == [700, 0, 0, 7 * 4096]


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_huge_pages_are_requested_unless_the_user_has_set_it(tmp_path: Path) -> None:
    for given, expected in (({}, "1"), ({"THP_MEM_ALLOC_ENABLE": "0"}, "0")):
        environment = dict(given)
        use_huge_pages(environment)
        assert environment == {"THP_MEM_ALLOC_ENABLE": expected}
    assert not huge_pages_available(tmp_path)
    setting = tmp_path / "sys/kernel/mm/transparent_hugepage/enabled"
    setting.parent.mkdir(parents=True)
    for text, available in (("always [madvise] never", True), ("always madvise [never]", False)):
        setting.write_text(text)
        assert huge_pages_available(tmp_path) is available


def test_freed_memory_goes_back_to_the_system() -> None:
    pieces = [torch.ones(1 << 14) for _ in range(1000)]  # 64 KiB each: small enough for the C library to keep
    last = torch.ones(1 << 14)  # and this one keeps the heap from shrinking by itself
    del pieces[:]
    before = _resident()
    give_back_free_memory()
    assert before - _resident() > 32 << 20
    assert float(last.sum()) == 1 << 14


def test_a_measurement_is_made_once_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name : one\nflags : a b\n")

    def never() -> float:
        raise AssertionError("measured again")

    assert cached_measurement("x", lambda: 1.5, cpuinfo) == 1.5
    assert cached_measurement("x", never, cpuinfo) == 1.5
    assert cached_measurement("y", lambda: 2.5, cpuinfo) == 2.5
    assert cached_measurement("x", never, cpuinfo) == 1.5
    cpuinfo.write_text("model name : another\nflags : a b\n")
    assert cached_measurement("x", lambda: 3.5, cpuinfo) == 3.5
    cache_file().write_text("{ not JSON")
    assert cached_measurement("x", lambda: 4.5, cpuinfo) == 4.5


@pytest.mark.parametrize("folder_in_the_way", [True, False])
def test_a_cache_that_cannot_be_written_does_no_harm(
    folder_in_the_way: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if folder_in_the_way:
        cache_file().mkdir(parents=True)
    else:
        cache_file().parent.write_text("a file where the folder should be")
    assert cached_measurement("x", lambda: 1.0) == 1.0
    assert cached_measurement("x", lambda: 2.0) == 2.0


def test_attention_follows_the_device_and_says_what_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_attention(None, CPU) == "paged"
    assert choose_attention(None, CUDA) == "ragged_flash"
    assert choose_attention("paged", CUDA) == "paged"
    with pytest.raises(UnsupportedSettingError, match=r"needs a GPU.*--attn_cls paged"):
        choose_attention("ragged_flash", CPU)
    with monkeypatch.context() as torch_kernels:  # graphs and their static batches are for Triton's attention alone
        torch_kernels.setattr("blade_llm.runner.device.torch_only", lambda: True)
        assert choose_attention(None, CUDA) == "paged"
        with pytest.raises(UnsupportedSettingError, match="BLADE_LLM_KERNELS"):
            choose_attention("ragged_flash", CUDA)
    monkeypatch.setattr("blade_llm.runner.device.find_spec", lambda name: None)
    assert choose_attention(None, CUDA) == "paged"
    with pytest.raises(UnsupportedSettingError, match=r"Triton.*--attn_cls paged"):
        choose_attention("ragged_flash", CUDA)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_gpu_memory_utilization": 1.5}, "at most 1"),
        ({"max_gpu_memory_utilization": 0.0}, "above 0"),
        ({"cuda_graph_batch_sizes": (4, 0)}, "at least 1"),
        ({"cuda_graph_batch_sizes": ()}, "disable_cuda_graph"),
        ({"cuda_graph_token_sizes": (4, 0)}, "at least 1"),
        ({"cuda_graph_token_sizes": ()}, "cuda_graph_max_tokens 0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        EngineConfig(model="m", served_names=("m",), **settings)
