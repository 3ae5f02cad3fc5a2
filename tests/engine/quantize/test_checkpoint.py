"""Quantised checkpoints: their numbers are those of the plain formulas, and the engine computes what transformers does
with these numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.families import ROWS, in_one_tensor, save_row
from engine_support.heads import MTP_ROWS, save_with_mtp
from engine_support.quantize_runs import (
    BLOCKS,
    FORMS,
    SIZES,
    content,
    quantize,
    stored_linears,
    with_weights,
)
from engine_support.runner_driver import Driver, prompt_of
from engine_support.stored_tensors import tensors_of
from engine_support.thread_ranks import thread_ranks
from engine_support.tiny_models import engine_config, load_reference, reference_greedy, save_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from blade_llm.check.model import check_model
from blade_llm.cli.split import main as split_main
from blade_llm.models.heads.mtp import find_mtp
from blade_llm.models.implementation import read_model_config
from blade_llm.models.tensors import expected_tensors
from blade_llm.quantize.report import REPORT_NAME
from blade_llm.runner import build_runner
from blade_llm.weights.checkpoint import check_weights, open_checkpoint


def rounded(weight: Tensor, form: str) -> Tensor:
    """What the form makes of a weight, written plainly. Scales have the weight's type."""
    exact = weight.float()
    if form == "fp8":
        scale = (exact.abs().amax(1, keepdim=True) / 448).to(weight.dtype).float()
        return (exact / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
    bits = int(form[0])
    size = {"8 bits, groups": 32, "3 bits, zero points": 16}.get(form, 32 if "," in form else weight.shape[1])
    groups = exact.unflatten(1, (-1, size))
    low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
    if "zero points" in form:
        scale = ((high - low) / (2**bits - 1)).to(weight.dtype).float()
        zero = (-low / scale).round().clamp(0, 2**bits - 1)
        return (((groups / scale).round() + zero).clamp(0, 2**bits - 1).sub(zero) * scale).flatten(1)
    scale = (groups.abs().amax(-1, keepdim=True) / (2**bits - 1) * 2).to(weight.dtype).float()
    return ((groups / scale).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) * scale).flatten(1)


def inside(module: str) -> bool:
    return "layers." in module


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS)
def test_the_numbers_are_those_of_the_formulas(tmp_path: Path, form: str, dtype: torch.dtype) -> None:
    save_model(tmp_path / "whole", "llama", dtype, **SIZES)
    assert quantize(tmp_path / "whole", tmp_path / "small", *FORMS[form]) == 0
    weights = load_file(tmp_path / "whole" / "model.safetensors")
    found = stored_linears(tmp_path / "small")
    assert len(found) == 22
    changed = 0
    for module, weight in found.items():
        original = weights[f"{module}.weight"]
        expected = rounded(original, form) if inside(module) else original.float()
        # A quotient may be rounded another way where it is divided in another order: a step of a scale's last bit.
        torch.testing.assert_close(weight, expected, rtol=1e-6, atol=1e-7)
        changed += not torch.equal(weight, original.float())
    assert changed == 21


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("form", FORMS)
def test_greedy_tokens_are_those_of_transformers_with_these_numbers(tmp_path: Path, family: str, form: str) -> None:
    save_model(tmp_path / "whole", family, **SIZES)
    assert quantize(tmp_path / "whole", tmp_path / "small", *FORMS[form]) == 0
    plain = with_weights(tmp_path / "whole", tmp_path / "plain", stored_linears(tmp_path / "small"))
    driver = Driver(build_runner(engine_config(tmp_path / "small")))
    prompt = prompt_of(40)
    assert driver.generate(0, prompt, 24) == reference_greedy(load_reference(plain), prompt, 24)


FAMILIES = (
    *("mixtral", "deepseek-v3", "bloom", "chatglm", "qwen2-moe", "internlm2", "falcon", "phi3", "gpt-neox"),
    *("qwen2-vl", "qwen3-vl", "internvl-llama"),
)


@pytest.mark.parametrize("name", FAMILIES)
def test_families(tmp_path: Path, name: str) -> None:
    """Everything inside of the blocks is quantised, nothing else; and it computes."""
    row = ROWS[name]
    save_row(tmp_path / "whole", row)
    assert quantize(tmp_path / "whole", tmp_path / "small", "--max_shard_size", "100KB") == 0
    before, after = tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "small")
    quantized = {key.removesuffix("_packed") for key in after if key.endswith(".weight_packed")}
    kept = before.keys() - quantized
    assert all((before[key].dim() == 2 and "layers." in key) or ".h." in key for key in quantized)
    for key in kept:
        assert torch.equal(before[key], after[key]), key
    heavy = {key for key in kept if before[key].dim() == 2}
    allowed = ("embed", "lm_head", "head", "gate.weight", "output.weight", "output_layer", "wte", "kv_b_proj")
    allowed += ("visual.", "vision_tower.", "multi_modal_projector.")
    assert all(any(part in key for part in allowed) for key in heavy), heavy
    whole, small = stored_linears(tmp_path / "whole"), stored_linears(tmp_path / "small")
    assert max(float((small[module] - whole[module]).norm() / whole[module].norm()) for module in whole) < 0.01
    with_weights(tmp_path / "whole", tmp_path / "plain", small)
    prompt = prompt_of(30)
    tokens = [
        Driver(build_runner(engine_config(folder, **row.runner))).generate(0, prompt, 12)
        for folder in (tmp_path / "plain", tmp_path / "small")
    ]
    assert tokens[0] == tokens[1]


def test_the_files_beside_the_weights(tmp_path: Path) -> None:
    whole, small = tmp_path / "whole", tmp_path / "small"
    save_model(whole, "qwen2", torch.bfloat16, **SIZES)
    (whole / "tokenizer.json").write_text("{}")
    (whole / "chat_template.jinja").write_text("{{ messages }}")
    (whole / "1_Pooling").mkdir()
    (whole / "1_Pooling" / "config.json").write_text("{}")
    (whole / "README.md").write_text("---\nlicense: mit\nlanguage:\n- en\ntags:\n- odd\n---\n# Mine\n")
    assert quantize(whole, small, *BLOCKS, "--ignore", "*.v_proj", "re:.*layers.1.mlp", "lm_head") == 0
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json", "1_Pooling/config.json"):
        assert (small / name).read_bytes() == (whole / name).read_bytes()
    assert {file.name for file in tmp_path.iterdir()} == {"whole", "small", ".small.lock"}
    card = (small / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\nlanguage:\n- en\ntags:\n- compressed-tensors\n- pack-quantized\n---\n")
    assert card.count("odd") == 0
    assert card.endswith("## The original's model card\n\n# Mine\n")
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (whole, small))
    made = after.pop("quantization_config")
    assert after == before
    assert made["quant_method"] == "compressed-tensors"
    assert made["ignore"] == sorted(
        [
            "lm_head",
            *(f"model.layers.1.mlp.{name}_proj" for name in ("gate", "up", "down")),
            *(f"model.layers.{layer}.self_attn.v_proj" for layer in range(3)),
        ]
    )
    assert made["config_groups"]["group_0"]["weights"]["group_size"] == 32
    assert len([key for key in tensors_of(small) if key.endswith("weight_packed")]) == 21 - 6


def test_the_report(tmp_path: Path) -> None:
    whole, small = tmp_path / "whole", tmp_path / "small"
    save_model(whole, "llama", torch.bfloat16, **SIZES)
    assert quantize(whole, small, *BLOCKS, "--asymmetric") == 0
    report: dict[str, Any] = json.loads((small / REPORT_NAME).read_text())
    weights, found = load_file(whole / "model.safetensors"), stored_linears(small)
    assert report["bytes_before"] == sum(each.nbytes for each in weights.values())
    after = tensors_of(small)
    assert report["bytes_after"] == sum(each.nbytes for each in after.values())
    assert report["options"]["group_size"] == 32
    assert set(report["unchanged"]) | report["tensors"].keys() == weights.keys()
    for name, each in report["tensors"].items():
        weight, module = weights[name].float(), name.removesuffix(".weight")
        assert each["error"] == pytest.approx(float((found[module] - weight).norm() / weight.norm()), rel=1e-4)
        own = sum(value.nbytes for key, value in after.items() if key.startswith(f"{module}."))
        assert each["bytes_after"] == own
        assert each["bits_per_weight"] == pytest.approx(own * 8 / weight.numel())
    assert len(report["tensors"]) == 21


def test_a_single_file_parts_and_pickles_become_the_same(tmp_path: Path) -> None:
    save_model(tmp_path / "whole", "qwen2", torch.bfloat16, **SIZES)
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_bytes((tmp_path / "whole" / "config.json").read_bytes())
    tensors = load_file(tmp_path / "whole" / "model.safetensors")
    torch.save(tensors, pickled / "pytorch_model.bin")
    assert quantize(tmp_path / "whole", tmp_path / "one") == 0
    assert quantize(tmp_path / "whole", tmp_path / "parts", "--max_shard_size", "30KB") == 0
    assert quantize(pickled, tmp_path / "of-pickled") == 0
    files = sorted((tmp_path / "parts").glob("*.safetensors"))
    assert len(files) > 5
    index = json.loads((tmp_path / "parts" / "model.safetensors.index.json").read_text())
    one = tensors_of(tmp_path / "one")
    assert index["weight_map"] == {name: file.name for file in files for name in load_file(file)}
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in one.values())
    for folder in ("parts", "of-pickled"):
        other = tensors_of(tmp_path / folder)
        assert other.keys() == one.keys()
        assert all(torch.equal(other[name], tensor) for name, tensor in one.items())


@pytest.mark.parametrize("family", ["qwen2", "mixtral"])
def test_a_split_folder_becomes_one_whole_quantised_checkpoint(tmp_path: Path, family: str) -> None:
    whole, split = tmp_path / "whole", tmp_path / "split"
    save_row(whole, ROWS[family])
    assert split_main(["--model", str(whole), "-tp", "2", "--output_dir", str(split)]) == 0
    assert quantize(whole, tmp_path / "one") == 0
    assert quantize(split, tmp_path / "other", "--tensor_parallel_size", "2") == 0
    one, other = tensors_of(tmp_path / "one"), tensors_of(tmp_path / "other")
    assert one.keys() == other.keys()
    assert all(torch.equal(other[name], tensor) for name, tensor in one.items())
    assert not [file for file in (tmp_path / "other").rglob("*") if "blade_split" in file.name]


def test_ranks_compute_what_one_does(tmp_path: Path) -> None:
    """Also where a group of inputs is divided: ranks have 48 of 96."""
    save_model(tmp_path / "whole", "llama", **SIZES)
    assert quantize(tmp_path / "whole", tmp_path / "small", *BLOCKS, "-tp", "2") == 0
    plain = with_weights(tmp_path / "whole", tmp_path / "plain", stored_linears(tmp_path / "small"))
    prompt = prompt_of(40)
    driver = Driver(thread_ranks(tmp_path / "small", 2))
    assert driver.generate(0, prompt, 16) == reference_greedy(load_reference(plain), prompt, 16)


@pytest.mark.parametrize("name", MTP_ROWS)
def test_a_layer_for_multi_token_prediction_stays_and_is_found(tmp_path: Path, name: str) -> None:
    save_with_mtp(tmp_path / "whole", name)
    assert quantize(tmp_path / "whole", tmp_path / "small") == 0
    heads = [find_mtp(folder, read_model_config(folder)) for folder in (tmp_path / "whole", tmp_path / "small")]
    assert heads[0] is not None
    assert heads[1] is not None
    assert not check_weights(open_checkpoint(tmp_path / "small"), heads[1])
    before, after = tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "small")
    main = expected_tensors(read_model_config(tmp_path / "whole"), before)
    own = expected_tensors(heads[0], before).keys() - main.keys()
    assert len(own) > 8
    assert all(torch.equal(before[tensor], after[tensor]) for tensor in own)


def test_tensors_that_no_part_of_the_model_takes_are_copied(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    save_model(whole, "llama", **SIZES)
    extra = {
        "unused.table": torch.randint(0, 9, (3, 5)),
        "unused.flags": torch.rand(3) > 0.5,
        "unused.empty": torch.empty(0, 4),
        "unused.linear.weight": torch.rand(4, 4),
    }
    save_file({**load_file(whole / "model.safetensors"), **extra}, whole / "model.safetensors", {"format": "pt"})
    assert quantize(whole, tmp_path / "small") == 0
    after = tensors_of(tmp_path / "small")
    assert all(torch.equal(after[name], tensor) for name, tensor in extra.items())
    made = json.loads((tmp_path / "small" / "config.json").read_text())["quantization_config"]
    assert made["ignore"] == ["lm_head", "unused.linear"]


def test_the_same_flags_make_the_same_bytes(tmp_path: Path) -> None:
    save_model(tmp_path / "whole", "llama", torch.bfloat16, **SIZES)
    for name in ("one", "two"):
        assert quantize(tmp_path / "whole", tmp_path / name, *BLOCKS) == 0
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_the_check_accepts_it(tmp_path: Path) -> None:
    save_model(tmp_path / "whole", "llama", torch.bfloat16, **SIZES)
    assert quantize(tmp_path / "whole", tmp_path / "small", *BLOCKS) == 0
    detail = check_model(tmp_path / "small").detail
    assert not any(word in detail for word in ("tensors are missing", "wrong shape", "not supported")), detail


def test_zeros_and_one_value(tmp_path: Path) -> None:
    """A layer that was cut away, and one whose weights are all alike."""
    whole = tmp_path / "whole"
    save_model(whole, "llama", torch.float16, **SIZES)
    tensors = load_file(whole / "model.safetensors")
    zero, same = "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"
    tensors |= {zero: torch.zeros_like(tensors[zero]), same: torch.full_like(tensors[same], -0.25)}
    save_file(tensors, whole / "model.safetensors", {"format": "pt"})
    for name, flags in FORMS.items():
        assert quantize(whole, tmp_path / name, *flags) == 0
        found = stored_linears(tmp_path / name)
        assert not found[zero.removesuffix(".weight")].any()
        torch.testing.assert_close(found[same.removesuffix(".weight")], tensors[same].float(), rtol=0.15, atol=0)
        report = json.loads((tmp_path / name / REPORT_NAME).read_text())
        assert report["tensors"][zero]["error"] == 0


def test_one_tensor_for_all_experts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused, but for the other layers alone."""
    save_row(tmp_path / "whole", ROWS["mixtral"])
    in_one_tensor(tmp_path / "whole", tmp_path / "one")
    assert quantize(tmp_path / "one", tmp_path / "small") == 1
    assert "experts.gate_up_proj is one tensor for all experts of a layer" in capsys.readouterr().err
    assert quantize(tmp_path / "one", tmp_path / "small", "--ignore", "*.experts.*") == 0
    before, after = tensors_of(tmp_path / "one"), tensors_of(tmp_path / "small")
    experts = {name for name in before if ".experts." in name}
    assert experts == {name for name in after if ".experts." in name}
    assert all(torch.equal(before[name], after[name]) for name in experts)
    driver = Driver(build_runner(engine_config(tmp_path / "small")))
    assert len(driver.generate(0, prompt_of(30), 4)) == 4
