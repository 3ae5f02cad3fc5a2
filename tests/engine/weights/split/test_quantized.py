"""Quantised checkpoints split for ranks and joined again, and split ones quantised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.compressed_tensors import F8, FP8_STATIC, INT8_STATIC, W8, compressed
from engine_support.compressed_tensors import FORMS as COMPRESSED
from engine_support.families import ROWS, save_row
from engine_support.quantized_checkpoints import SIZES, Quantize, awq, float8, gptq, quantize_folder, save_quantized
from engine_support.runner_driver import Driver, prompt_of
from engine_support.stored_tensors import same_bytes, tensors_of
from engine_support.thread_ranks import thread_groups, thread_ranks
from engine_support.tiny_models import engine_config, reference_greedy, save_model

from blade_llm.cli.quantize import main as quantize
from blade_llm.cli.split import main
from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import shard_model
from blade_llm.runner import build_runner
from blade_llm.weights import loader
from blade_llm.weights.checkpoint import check_weights, open_checkpoint
from blade_llm.weights.sources import SafetensorsWeights

FORMS: dict[str, tuple[dict[str, Any], Quantize]] = {
    "gptq": gptq(4, 32, symmetric=False),
    "gptq, act-order": gptq(4, 16, symmetric=False, act_order=True),
    "gptq, 3 bits": gptq(3, 32, symmetric=False),
    "gptq, head": gptq(8, 16, head=True),
    "awq": awq(16),
    "fp8 blocks": compressed({**F8, "strategy": "block", "block_structure": [32, 32]}, "float-quantized"),
    "fp8 whole": compressed({**F8, "strategy": "tensor"}, "float-quantized"),
    "fp8 blocks, by token": float8((32, 32)),
    "fp8 whole, by token": float8(None),
    "w8a8, static": compressed(W8, "int-quantized", rounded=INT8_STATIC),
    "fp8, static": compressed({**F8, "strategy": "tensor"}, "float-quantized", rounded=FP8_STATIC),
    **{
        name: COMPRESSED[name]
        for name in ("4 bits, zero points", "4 bits, act-order", "3 bits", "8 bits", "8 bits, one scale", "fp8")
    },
}
FAMILIES = ["chatglm", "falcon", "internlm2", "mixtral", "deepseek-v3"]
"""Fused queries, keys and values in three orders; experts; latent attention."""


def split(whole: Path, folder: Path, size: int) -> None:
    common = ["--max_shard_size", "100KB"]
    assert main(["--model", str(whole), "-tp", str(size), "--output_dir", str(folder), *common]) == 0


def assert_joined(folder: Path, joined: Path, whole: Path) -> None:
    assert main(["--model", str(folder), "--reverse", "--output_dir", str(joined)]) == 0
    before, after = tensors_of(whole), tensors_of(joined)
    assert before.keys() == after.keys()
    for tensor, value in before.items():
        assert same_bytes(value, after[tensor]), tensor
    assert (joined / "config.json").read_bytes() == (whole / "config.json").read_bytes()


def tokens_of(folder: Path, size: int, stages: int = 1, **options: Any) -> tuple[list[int], list[int]]:
    runner = thread_ranks(folder, size, stages, **options) if size * stages > 1 else build_runner(engine_config(folder))
    driver = Driver(runner)  # type: ignore[arg-type]
    return driver.generate(0, prompt_of(40), 12), driver.generate(1, prompt_of(9, 1), 12)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, 2) for name in FORMS),
        ("gptq", 4),
        ("4 bits, act-order", 4),
        ("fp8 blocks", 4),
        ("fp8 blocks, by token", 4),
    ],
)
def test_ranks_compute_the_same_and_join_to_the_same_bytes(name: str, size: int, tmp_path: Path) -> None:
    """Also where ranks divide groups and blocks: 96 inputs in groups of 32 make 24 for each of four. What rounds each
    token by its largest value does so rank by rank, which one rank alone does otherwise."""
    whole, folder = tmp_path / "whole", tmp_path / "split"
    reference = save_quantized(whole, "qwen2", *FORMS[name], **SIZES)
    split(whole, folder, size)
    assert check_weights(open_checkpoint(folder, size), read_model_config(folder)) == []
    assert json.loads((folder / "config.json").read_text())["quantization_config"] == FORMS[name][0]
    prompts = prompt_of(40), prompt_of(9, 1)
    found = tokens_of(folder, size)
    assert found == tokens_of(whole, size)
    if not name.endswith("by token"):
        assert found == tuple(reference_greedy(reference, prompt, 12) for prompt in prompts)
    assert_joined(folder, tmp_path / "joined", whole)


@pytest.mark.parametrize(("name", "form"), [*((name, "4 bits, act-order") for name in FAMILIES), ("falcon", "fp8")])
def test_other_families(name: str, form: str, tmp_path: Path) -> None:
    """Parts of a stored weight that are several rows, or rows in another order."""
    save_row(tmp_path / "plain", ROWS[name], torch.float16)
    whole, folder = tmp_path / "whole", tmp_path / "split"
    config, of_module = FORMS[form]
    modules = {part.module for part in read_model_config(tmp_path / "plain").tensors.linear_parts()}
    quantize_folder(
        tmp_path / "plain", whole, config, lambda name, weight: of_module(name, weight) if name in modules else None
    )
    split(whole, folder, 2)
    options = ROWS[name].runner
    assert tokens_of(folder, 2, **options) == tokens_of(tmp_path / "plain", 2, **options)
    assert_joined(folder, tmp_path / "joined", whole)


@pytest.mark.parametrize("name", ["awq", "gptq, act-order"])
def test_stages_of_ranks_read_the_same_folders(name: str, tmp_path: Path) -> None:
    save_quantized(tmp_path / "whole", "qwen2", *FORMS[name], **SIZES)
    split(tmp_path / "whole", tmp_path / "split", 2)
    assert tokens_of(tmp_path / "split", 2, 2) == tokens_of(tmp_path / "whole", 1)


@pytest.mark.parametrize("name", ["gptq", "gptq, act-order", "awq", "4 bits, zero points", "fp8 blocks"])
def test_a_rank_has_what_it_reads_and_no_more(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of a whole folder it reads as much."""
    save_quantized(tmp_path / "whole", "qwen2", *FORMS[name], **SIZES)
    split(tmp_path / "whole", tmp_path / "split", 2)
    config = read_model_config(tmp_path / "split")
    read: dict[tuple[str, str], int] = {}
    original = SafetensorsWeights._mapped

    def mapped(self: SafetensorsWeights, name: str, block: object) -> torch.Tensor:
        found = original(self, name, block)  # type: ignore[arg-type]
        read[name, repr(block)] = found.nbytes
        return found

    monkeypatch.setattr(SafetensorsWeights, "_mapped", mapped)
    for rank in range(2):
        counted: list[dict[str, int]] = []
        for folder in (tmp_path / "whole", tmp_path / "split"):
            read.clear()
            own = shard_model(config, rank, 2)
            settings: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32}
            loader.load_model(
                folder, own, load_format="auto", max_positions=64, group=thread_groups(2)[rank], **settings
            )
            total: dict[str, int] = {}
            for (tensor, _), nbytes in read.items():
                total[tensor] = total.get(tensor, 0) + nbytes
            counted.append(total)
        there = {tensor: value.nbytes for tensor, value in tensors_of(tmp_path / "split" / f"rank_{rank}").items()}
        assert counted[0] == counted[1] == there


@pytest.mark.parametrize("flags", [("--bit", "4", "--block_wise_quant", "--block_size", "32"), ("--quant_dtype=fp8",)])
def test_quantised_before_and_after(flags: tuple[str, ...], tmp_path: Path) -> None:
    """The same tensors, and the same tokens."""
    plain = tmp_path / "plain"
    save_model(plain, "qwen2", torch.float16, **SIZES)
    split(plain, tmp_path / "split", 2)
    sources = {"whole": plain, "of-parts": tmp_path / "split"}
    for name, source in sources.items():
        assert quantize(["--model", str(source), "--output_dir", str(tmp_path / name), *flags]) == 0
    whole, of_parts = (tensors_of(tmp_path / name) for name in sources)
    assert whole.keys() == of_parts.keys()
    assert all(same_bytes(value, of_parts[name]) for name, value in whole.items())
    split(tmp_path / "whole", tmp_path / "parts", 2)
    expected = tokens_of(tmp_path / "whole", 1)
    assert tokens_of(tmp_path / "parts", 2) == tokens_of(tmp_path / "of-parts", 2) == expected
    assert_joined(tmp_path / "parts", tmp_path / "joined", tmp_path / "whole")
