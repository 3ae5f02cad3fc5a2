"""Each item of ``blade_llm_check``: what passes, warns and fails, and what the message says to do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from hub_support.tiny_model import make_model
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from blade_llm.check import flops_diff, memory_fit
from blade_llm.check.flops_diff import check_flops_diff, judge
from blade_llm.check.memory_fit import check_memory_fit
from blade_llm.check.model import Wanted, check_model
from blade_llm.check.pb_env import check_pb_env
from blade_llm.check.rank_memory import GRAPH_BYTES_PER_LAYER, RUNTIME_BYTES, Gpu
from blade_llm.check.shm import check_shm
from blade_llm.config import EngineConfig, SpeculativeConfig
from blade_llm.models.config import load_model_config
from blade_llm.models.tensors import expected_tensors
from blade_protocol.check import CheckItem

GIB = 1 << 30


@pytest.mark.parametrize(("blocks", "status"), [(16384, "PASS"), (16383, "WARNING"), (1, "WARNING")])
def test_shm_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, status: str) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_blocks=blocks, f_frsize=4096))
    item = check_shm(tmp_path)
    assert item.status == status
    assert item.detail.startswith(f"shared Memory is {blocks * 4096} bytes")
    assert ("larger" in item.detail) == (status == "WARNING")


def test_shm_missing_fails(tmp_path: Path) -> None:
    item = check_shm(tmp_path / "none")
    assert item.status == "FAILED"
    assert (
        item.detail == f"{tmp_path / 'none'} cannot be used (No such file or directory); mount a writable tmpfs there"
    )


@pytest.mark.parametrize(
    ("value", "status", "ending"),
    [
        (None, "PASS", "is OK"),
        ("upb", "PASS", "is OK"),
        ("python", "WARNING", "unset it"),
        ("cpp", "WARNING", "unset it"),
        ("rust", "FAILED", "unset it"),
        ("", "FAILED", "unset it"),
    ],
)
def test_pb_env(value: str | None, status: str, ending: str) -> None:
    item = check_pb_env({} if value is None else {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": value})
    assert item.status == status
    assert item.detail.startswith(f"Env var PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION={value} ")
    assert item.detail.endswith(ending)


@pytest.mark.parametrize(
    ("flops", "status", "start"),
    [
        ([5.0], "PASS", "max flops diff amoung 1 devices is 1.00"),
        ([1.2, 1.0], "PASS", "max flops diff amoung 2 devices is 1.20"),
        (
            [3.0, 2.0, 2.5],
            "WARNING",
            "max flops diff amoung 3 devices is 1.50, more than 1.20; device 1 is the slowest",
        ),
        ([1.0, 2.01], "FAILED", "max flops diff amoung 2 devices is 2.01, more than 1.20; device 0 is the slowest"),
    ],
)
def test_flops_ratio(flops: list[float], status: str, start: str) -> None:
    item = judge(flops)
    assert item.status == status
    assert item.detail.startswith(start)
    assert status != "PASS" or item.detail == start


def test_flops_are_measured() -> None:
    import torch

    torch.set_num_threads(1)
    assert 1e8 < flops_diff.measure_flops(torch.device("cpu")) < 1e14


def test_a_device_that_cannot_multiply_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: object) -> float:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(flops_diff, "measure_flops", broken)
    item = check_flops_diff()
    assert (item.status, item.detail.endswith(" cannot be used: no kernel image")) == ("FAILED", True)


# The tiny model in fp32: a block of the KV cache takes 16 tokens of 128 bytes; its 256 tokens are 16 blocks.
BLOCK = 2048
MATRICES = 32 * 16 + 2 * (16 * 16 * 2 + 8 * 16 * 2 + 24 * 16 * 3)
OTHERS = 32 * 16 + 16 + 2 * (32 + 32)
"""Vectors, and the embedding table: what the output matrix, packed, is a copy of."""
WEIGHTS = 4 * (MATRICES + OTHERS)
FILES = WEIGHTS - 4 * 32 * 16
LAYER_ACTIVATIONS = 16 * (4 * 16 + 8 * 4 + 3 * 24) * 4
ACTIVATIONS = LAYER_ACTIVATIONS + 16 * 3 * 32 * 4
FIXED = WEIGHTS + ACTIVATIONS + RUNTIME_BYTES


def plan(model: Path, limit: int, **flags: Any) -> CheckItem:
    settings = {"dtype": "float32", "max_num_seqs": 4, "max_batch_tokens": 16, **flags}
    return check_memory_fit(EngineConfig(model=str(model), served_names=(), **settings), limit)


def test_memory_that_fits_gives_every_number(tmp_path: Path) -> None:
    item = plan(make_model(tmp_path), 4 * GIB, kv_cache_bytes=40 * BLOCK)
    assert item.status == "PASS"
    assert item.detail == (
        f"float32: weights {WEIGHTS} bytes (0.00 GiB) + activations {ACTIVATIONS} bytes (0.00 GiB) "
        f"+ runtime {RUNTIME_BYTES} bytes (0.50 GiB) + KV cache {40 * BLOCK} bytes (0.00 GiB) "
        f"(40 blocks, 640 tokens, 2.5 requests of 256 tokens) = {FIXED + 40 * BLOCK} bytes (0.50 GiB) "
        f"of {4 * GIB} bytes (4.00 GiB)"
    )


@pytest.mark.parametrize(("quant", "each"), [("int8", 1.0), ("int4", 0.5625)])
def test_quantised_matrices_take_less(tmp_path: Path, quant: str, each: float) -> None:
    detail = plan(make_model(tmp_path), 4 * GIB, quant=quant).detail
    assert f"weights {4 * OTHERS + int(each * MATRICES)} bytes" in detail


def test_by_default_the_cache_gets_a_quarter_and_no_more_than_can_be_used(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    assert f"KV cache {GIB} bytes (1.00 GiB)" in plan(model, 4 * GIB, max_num_seqs=10**6).detail
    assert (
        f"KV cache {4 * 16 * BLOCK} bytes (0.00 GiB) (64 blocks, 1024 tokens, 4.0 requests" in plan(model, GIB).detail
    )


def suggested(detail: str, flag: str) -> int:
    words = detail.split()
    return int(words[words.index(flag) + 1])


@pytest.mark.parametrize(("limit", "status"), [(GIB, "FAILED"), (int(1.55 * GIB), "WARNING")])
def test_a_cache_too_large_names_the_size_that_passes(tmp_path: Path, limit: int, status: str) -> None:
    def with_cache(size: int) -> CheckItem:
        # 32768 full requests can use a GiB; their logits and noise are the rest
        return plan(model, limit + 32768 * 3 * 32 * 4, kv_cache_bytes=size, max_num_seqs=32768)

    model = make_model(tmp_path)
    item = with_cache(GIB)
    assert item.status == status
    fitting = suggested(item.detail, "--kv_cache_bytes")
    assert with_cache(fitting).status == "PASS"
    assert with_cache(fitting + BLOCK).status != "PASS"


def test_too_little_for_the_length_names_a_shorter_one_that_passes(tmp_path: Path) -> None:
    model, limit = make_model(tmp_path), int((FIXED + 10.5 * BLOCK) / 0.9)
    item = plan(model, limit, kv_cache_bytes=100 * BLOCK)
    assert item.status != "PASS"
    size, length = suggested(item.detail, "--kv_cache_bytes"), suggested(item.detail, "--max_model_len")
    assert length == 160
    assert plan(model, limit, kv_cache_bytes=size, max_model_len=length).status == "PASS"


def test_a_model_too_large_names_the_memory_it_takes(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    item = plan(model, GIB // 4, kv_cache_bytes=16 * BLOCK)
    assert item.status == "FAILED"
    least = int(item.detail.partition("allow at least ")[2].split()[0])
    assert plan(model, least + 1, kv_cache_bytes=16 * BLOCK).status == "PASS"


def test_a_cache_without_room_for_one_request_fails(tmp_path: Path) -> None:
    item = plan(make_model(tmp_path), 4 * GIB, kv_cache_bytes=BLOCK, max_model_len=200)
    assert item.status == "FAILED"
    assert f"raise --kv_cache_bytes to {13 * BLOCK}, or lower --max_model_len to 16" in item.detail


def gpu_plan(model: Path, gpu: Gpu, **flags: Any) -> CheckItem:
    settings = {"dtype": "float32", "max_num_seqs": 4, "max_batch_tokens": 16, **flags}
    return check_memory_fit(EngineConfig(model=str(model), served_names=(), **settings), gpu=gpu)


GRAPHS = (3 + 1) * 2 * GRAPH_BYTES_PER_LAYER + LAYER_ACTIVATIONS
"""Of batches of 1, 2 and 4 and of mixed steps of 16 tokens, in two layers; and what the largest works in."""
ON_GPU = WEIGHTS + ACTIVATIONS + GRAPHS


def test_where_there_is_a_gpu_its_memory_and_share_count_and_not_the_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_fit, "memory_limit_bytes", lambda: 1 << 20)  # a small pod
    model = make_model(tmp_path)
    item = gpu_plan(model, Gpu(free=GIB, total=GIB), kv_cache_bytes=40 * BLOCK, max_gpu_memory_utilization=0.5)
    assert item.status == "PASS"
    assert item.detail == (
        f"float32: weights {WEIGHTS} bytes (0.00 GiB) + activations {ACTIVATIONS} bytes (0.00 GiB) "
        f"+ CUDA graphs {GRAPHS} bytes (0.00 GiB) of {GIB // 2} bytes (0.50 GiB) (0.5 of the GPU's {GIB} bytes "
        f"(1.00 GiB), {GIB} bytes (1.00 GiB) free); KV cache {40 * BLOCK} bytes (0.00 GiB) (40 blocks, 640 tokens, "
        "2.5 requests of 256 tokens)"
    )
    monkeypatch.setattr(memory_fit, "_find_gpu", lambda ranks: Gpu(free=GIB, total=GIB))
    config = EngineConfig(model=str(model), served_names=(), dtype="float32", max_num_seqs=4)
    assert "of the GPU's" in check_memory_fit(config).detail


def test_the_kv_cache_gets_what_weights_a_step_and_graphs_leave_of_the_share(tmp_path: Path) -> None:
    model = make_model(tmp_path)

    def blocks(item: CheckItem) -> int:
        assert item.status == "PASS", item.detail
        return int(item.detail.partition(" blocks,")[0].rpartition("(")[2])

    total = 2 * (ON_GPU + 20 * BLOCK)
    assert blocks(gpu_plan(model, Gpu(total, total), max_gpu_memory_utilization=0.5)) == 20
    assert blocks(gpu_plan(model, Gpu(ON_GPU + 18 * BLOCK, total), max_gpu_memory_utilization=1.0)) == 18
    without = gpu_plan(model, Gpu(total, total), max_gpu_memory_utilization=0.5, disable_cuda_graph=True)
    assert blocks(without) == min(64, 20 + GRAPHS // BLOCK)


def test_with_adapters_the_slots_count_and_a_second_set_of_graphs(tmp_path: Path) -> None:
    model, gpu = make_model(tmp_path), Gpu(GIB, GIB)
    detail = gpu_plan(model, gpu, enable_lora=True, max_loras=3, kv_cache_bytes=40 * BLOCK).detail
    assert f"CUDA graphs {2 * GRAPHS - LAYER_ACTIVATIONS} bytes" in detail
    slots = [
        int(gpu_plan(model, gpu, enable_lora=True, max_loras=n, kv_cache_bytes=40 * BLOCK)
        .detail.partition("adapters ")[2].split()[0])
        for n in (3, 7)
    ]  # fmt: skip
    assert 0 <= 2 * slots[0] - slots[1] < 1 << 10  # buffers are one more than adapters


def test_a_share_that_is_too_small_and_a_gpu_that_is_are_said_with_what_to_change(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    gpu = Gpu(GIB, GIB)
    item = gpu_plan(model, gpu, max_gpu_memory_utilization=ON_GPU / GIB / 2)
    assert (item.status, "too much: raise --max_gpu_memory_utilization to more than" in item.detail) == ("FAILED", True)
    enough = float(item.detail.rpartition(" ")[2])
    assert gpu_plan(model, gpu, max_gpu_memory_utilization=enough + 0.001).status == "PASS"
    item = gpu_plan(model, Gpu(ON_GPU // 2, GIB))
    assert item.status == "FAILED"
    assert f"the GPU lacks at least {ON_GPU - ON_GPU // 2} bytes: take --quant int8" in item.detail
    item = gpu_plan(model, gpu, kv_cache_bytes=GIB)
    assert (item.status, "is more than what remains of the GPU; lower it to" in item.detail) == ("FAILED", True)


def test_a_length_that_the_engine_would_shorten_is_said(tmp_path: Path) -> None:
    item = plan(make_model(tmp_path), 4 * GIB, kv_cache_bytes=4 * BLOCK)
    assert (item.status, "1.0 requests of 64 tokens, the model allows 256)" in item.detail) == ("PASS", True)


def test_a_length_beyond_the_model_fails(tmp_path: Path) -> None:
    item = plan(make_model(tmp_path), 4 * GIB, max_model_len=1000)
    assert (item.status, "lower it to at most 256" in item.detail) == ("FAILED", True)


def test_a_whole_model_passes(tmp_path: Path) -> None:
    item = check_model(make_model(tmp_path, shards=2))
    assert item.status == "PASS"
    assert item.detail.endswith(f"26 tensors, {FILES} bytes in 2 files, vocabulary 32")


def failure(folder: Path) -> str:
    item = check_model(folder)
    assert item.status == "FAILED"
    return item.detail


def test_each_broken_folder_has_its_own_message(tmp_path: Path) -> None:
    assert "does not exist" in failure(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "config.json is missing" in failure(tmp_path / "empty")
    truncated = make_model(tmp_path / "truncated")
    (truncated / "model.safetensors").write_bytes((truncated / "model.safetensors").read_bytes()[:-7])
    assert "is truncated: its header describes" in failure(truncated)
    assert "architecture 'T5Model' is not supported" in failure(
        make_model(tmp_path / "bert", architectures=["T5Model"])
    )
    norm = "model.norm.weight"
    assert f"1 of 26 tensors are missing: {norm}" in failure(make_model(tmp_path / "missing", drop=[norm]))
    wrong = {norm: numpy.zeros((4, 4), dtype=numpy.float32)}
    assert "model.norm.weight is [4, 4] in model.safetensors, config.json asks for [16]" in failure(
        make_model(tmp_path / "shape", replace=wrong)
    )


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    make_model(tmp_path, drop=["model.norm.weight"])
    (tmp_path / "tokenizer.json").unlink()
    detail = failure(tmp_path)
    assert "1 of 26 tensors are missing" in detail
    assert "tokenizer.json is missing" in detail


def test_a_broken_tokenizer(tmp_path: Path) -> None:
    make_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": ')
    assert "tokenizer.json cannot be read" in failure(tmp_path)


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    make_model(tmp_path)
    Tokenizer(WordLevel({f"w{number}": number for number in range(33)})).save(str(tmp_path / "tokenizer.json"))
    assert "the tokenizer has token id 32, the model only 32 ids" in failure(tmp_path)


def test_a_chat_template_that_does_not_compile(tmp_path: Path) -> None:
    make_model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% for x %}")
    assert "chat_template.jinja, line 1: " in failure(tmp_path)


def test_a_base_model_without_a_chat_template_passes_and_the_detail_says_so(tmp_path: Path) -> None:
    make_model(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    item = check_model(tmp_path)
    assert item.status == "PASS"
    assert item.detail.endswith("; no chat template: /v1/chat/completions answers 400 until --chat_template is given")
    assert "no chat template" not in check_model(tmp_path, Wanted(task="embed", pooling="mean")).detail
    item = check_model(tmp_path, Wanted(tool_call_parser="hermes"))
    assert item.status == "WARNING"
    assert "there is no chat template for tools" in item.detail


def test_what_the_service_brings_or_does_not_need_is_not_missed(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    (model / "tokenizer_config.json").unlink()
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages }}<tool_call>{{ tools }}<think>")
    item = check_model(model, Wanted(chat_template=str(template)))
    assert item.status == "PASS"
    assert item.detail.endswith("vocabulary 32, tool calls hermes, reasoning qwen3")
    item = check_model(model, Wanted(task="embed", pooling="mean"))
    assert item.status == "PASS"
    assert item.detail.endswith("vocabulary 32, pooling mean")


@pytest.mark.parametrize(
    ("wanted", "status", "says"),
    [
        (Wanted(chat_template="/none.jinja"), "FAILED", "--chat_template /none.jinja: no such file"),
        (Wanted(tool_call_parser="magic"), "FAILED", "--tool_call_parser magic: unknown; known are hermes"),
        (Wanted(tool_call_parser="hermes"), "WARNING", "has no place for tools"),
        (Wanted(tool_call_parser="none", reasoning_parser="qwen3"), "PASS", "reasoning qwen3"),
        (Wanted(guided=True), "WARNING", "leave out --enable_json_warmup"),  # words, whose bytes nobody knows
    ],
)
def test_wishes_the_text_side_cannot_fulfil(tmp_path: Path, wanted: Wanted, status: str, says: str) -> None:
    item = check_model(make_model(tmp_path), wanted)
    assert item.status == status
    assert says in item.detail


def test_an_embedding_model_that_pools_otherwise_fails(tmp_path: Path) -> None:
    make_model(tmp_path)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    item = check_model(tmp_path, Wanted(task="embed"))
    assert item.status == "FAILED"
    assert "give --pooling last, mean or cls" in item.detail
    assert check_model(tmp_path).status == "PASS"


@pytest.mark.parametrize(
    ("template", "status"),
    [
        ([{"name": "tools", "template": "x"}, {"name": "default", "template": "{{ messages }}"}], "PASS"),
        ([{"name": "tools", "template": "x"}], "PASS"),  # none of them is the one for chat
        ("{% for m in messages %}{% if m %}{% continue %}{% endif %}{% endfor %}", "PASS"),
        ("{{ messages", "FAILED"),
    ],
)
def test_chat_templates_in_the_tokenizer_configuration(tmp_path: Path, template: object, status: str) -> None:
    make_model(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert check_model(tmp_path).status == status


def test_check_model_knows_a_gpt2_checkpoint_without_the_prefix_of_its_names(tmp_path: Path) -> None:
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "n_ctx": 64, "n_inner": None}
    folder = make_model(tmp_path, architectures=["GPT2LMHeadModel"], activation_function="gelu_new", **shape)
    expected = expected_tensors(load_model_config(folder))
    save_file(
        {name.removeprefix("transformer."): numpy.zeros(shape, numpy.float32) for name, shape in expected.items()},
        folder / "model.safetensors",
    )
    item = check_model(folder)
    assert item.status != "FAILED", item.detail
    assert "not used" not in item.detail


def test_a_draft_model_is_checked_with_the_model(tmp_path: Path) -> None:
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
        make_model(tmp_path / name)
    speculative = SpeculativeConfig(method="draft", draft_model=str(tmp_path / "draft"))
    item = check_model(tmp_path / "target", speculative=speculative)
    assert item.status == "WARNING"
    assert "it makes nothing faster; take one of a tenth of the size as --draft.model" in item.detail
    text = tmp_path / "text"
    text.mkdir()
    for file in (tmp_path / "draft").glob("tokenizer*.json"):
        (text / file.name).write_text(file.read_text())
    tokenizer = json.loads((tmp_path / "draft" / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    token = next(iter(vocabulary))
    vocabulary[f"{token}x"] = vocabulary.pop(token)
    (tmp_path / "draft" / "tokenizer.json").write_text(json.dumps(tokenizer))
    item = check_model(tmp_path / "target", speculative=speculative)
    assert item.status == "FAILED"
    assert "its tokenizer is another one than the model's: 2 tokens differ" in item.detail
    elsewhere = check_model(tmp_path / "target", Wanted(draft_tokenizer_dir=str(text)), speculative=speculative)
    assert elsewhere.status == "WARNING"  # as the server, which reads the tokenizer there, too
    (tmp_path / "draft" / "config.json").unlink()
    assert check_model(tmp_path / "target", speculative=speculative).status == "FAILED"


def drafting(model: Path) -> dict[str, Any]:
    """Settings by which a model drafts for itself: its blocks are twice as large."""
    return {"speculative": SpeculativeConfig(method="draft", draft_model=str(model))}


def test_a_draft_model_counts_in_the_memory(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    item = plan(model, 4 * GIB, kv_cache_bytes=80 * BLOCK, **drafting(model))
    assert f"+ draft model {WEIGHTS} bytes" in item.detail
    assert f"+ KV cache {80 * BLOCK} bytes (0.00 GiB) (40 blocks, 640 tokens" in item.detail
    assert f" = {FIXED + WEIGHTS + 80 * BLOCK} bytes" in item.detail
    assert "draft model" not in plan(model, 4 * GIB).detail


def test_a_draft_model_counts_in_a_gpus_memory(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    item = gpu_plan(model, Gpu(GIB, GIB), kv_cache_bytes=80 * BLOCK, **drafting(model))
    assert f"+ draft model {WEIGHTS} bytes" in item.detail
    assert f"KV cache {80 * BLOCK} bytes (0.00 GiB) (40 blocks, 640 tokens" in item.detail
    full = gpu_plan(model, Gpu(ON_GPU + WEIGHTS, GIB), **drafting(model))
    assert full.status == "FAILED"


def test_with_a_draft_model_the_sizes_that_are_named_pass(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    limit = int((FIXED + WEIGHTS + 2 * 16.5 * BLOCK) / 0.9)
    item = plan(model, limit, kv_cache_bytes=200 * BLOCK, **drafting(model))
    assert item.status != "PASS"
    assert suggested(item.detail, "--kv_cache_bytes") == 2 * 16 * BLOCK
    assert plan(model, limit, kv_cache_bytes=2 * 16 * BLOCK, **drafting(model)).status == "PASS"
    none = plan(model, 4 * GIB, kv_cache_bytes=2 * BLOCK, max_model_len=200, **drafting(model))
    assert none.status == "FAILED"
    assert f"raise --kv_cache_bytes to {2 * 13 * BLOCK}, or lower --max_model_len to 16" in none.detail
