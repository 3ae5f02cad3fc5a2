"""Adapters as PEFT itself saves them, against PEFT's merged model; and files that are refused, each by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from engine_support.adapters import targets_of, write_adapter
from engine_support.families import ROWS, save_row
from engine_support.family_proof import Comparison
from engine_support.runner_driver import prompt_of
from engine_support.tiny_models import engine_config, load_reference, save_model
from safetensors.torch import load_file, save_file

from blade_llm.lora.errors import AdapterError
from blade_llm.lora.reader import check_adapter, read_adapter
from blade_llm.runner import build_runner

PLAIN: dict[str, Any] = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
SAVED: dict[str, tuple[str, dict[str, Any]]] = {
    "a list of targets": ("qwen2", PLAIN),
    "all linear layers": ("qwen2", {**PLAIN, "target_modules": "all-linear"}),
    "an expression": ("llama", {**PLAIN, "target_modules": r".*layers\.[02]\.(self_attn|mlp)\.(q|up|down)_proj"}),
    "some layers": ("llama", {**PLAIN, "layers_to_transform": [0, 2]}),
    "all but some": ("llama", {**PLAIN, "target_modules": "all-linear", "exclude_modules": ["down_proj"]}),
    "scaled by the root of the rank": ("qwen2", {**PLAIN, "use_rslora": True}),
    "ranks and alphas by pattern": (
        "qwen2",
        {**PLAIN, "rank_pattern": {"q_proj": 3, r"layers\.1\.self_attn\.o_proj": 13}, "alpha_pattern": {"v_proj": 40}},
    ),
    "stored as in, out": ("gpt2", {"r": 8, "target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True}),
    "fused matrices": ("phi3", {**PLAIN, "target_modules": ["qkv_proj", "gate_up_proj"]}),
    "one matrix by head": ("gpt-neox", {**PLAIN, "target_modules": ["query_key_value", "dense_h_to_4h"]}),
    "one matrix by head, ALiBi": ("bloom", {**PLAIN, "target_modules": ["query_key_value"]}),
    "beside experts": ("mixtral", PLAIN),
    "latent attention": (
        "deepseek-v2",
        {**PLAIN, "target_modules": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"]},
    ),
    "latent attention, plain queries": ("deepseek-v2-lite", {**PLAIN, "target_modules": ["q_proj", "o_proj"]}),
}


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("what", list(SAVED))
def test_as_peft_computes_it(what: str, pickled: bool, tmp_path: Path) -> None:
    """Logits within 1e-4 and 16 greedy tokens of ``merge_and_unload``."""
    name, options = SAVED[what]
    save_row(tmp_path / "base", ROWS[name])
    torch.manual_seed(1)
    model: Any = peft.get_peft_model(load_reference(tmp_path / "base"), peft.LoraConfig(**options))
    for parameter in model.parameters():
        if parameter.requires_grad:  # B is zero at first
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(tmp_path / "adapter", safe_serialization=not pickled)
    reference = model.merge_and_unload().eval()
    row = ROWS[name]
    compare = Comparison(build_runner(engine_config(tmp_path / "base", enable_lora=True, **row.runner)), reference)
    weights = read_adapter(tmp_path / "adapter", targets_of(tmp_path / "base"), max_rank=16, dtype=torch.float32)
    compare.driver.place_adapter(1, weights)
    compare.driver.adapter = 1
    compare.enter(0, prompt_of(75))
    compare.step({0: 75})
    compare.decode([0], 16)
    compare.finish(0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("base")
    save_model(folder, "qwen2")
    return folder


def _tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def apply(adapter: Path) -> None:
        tensors = load_file(adapter / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, adapter / "adapter_model.safetensors")

    return apply


def _config(**fields: Any) -> Callable[[Path], None]:
    def apply(adapter: Path) -> None:
        path = adapter / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return apply


def _truncate(adapter: Path) -> None:
    path = adapter / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _set_nan(tensors: dict[str, torch.Tensor]) -> None:
    next(iter(tensors.values()))[0, 0] = float("nan")


def _drop(tensors: dict[str, torch.Tensor], ends: str) -> None:
    for name in [name for name in tensors if name.endswith(ends)]:
        del tensors[name]


def _rename(tensors: dict[str, torch.Tensor], old: str, new: str) -> None:
    for name in [name for name in tensors if old in name]:
        tensors[name.replace(old, new)] = tensors.pop(name)


def _drop_down(tensors: dict[str, torch.Tensor]) -> None:
    for matrix in "AB":
        _drop(tensors, f"layers.2.mlp.down_proj.lora_{matrix}.weight")


def _add_pair(module: str, inputs: int, outputs: int) -> Callable[[Path], None]:
    pair = {
        f"base_model.model.{module}.lora_A.weight": torch.ones(8, inputs),
        f"base_model.model.{module}.lora_B.weight": torch.ones(outputs, 8),
    }
    return _tensors(lambda tensors: tensors.update(pair))


def _pickle_code(adapter: Path) -> None:
    (adapter / "adapter_model.safetensors").unlink()
    torch.save({"x": print}, adapter / "adapter_model.bin")


def _no_json(adapter: Path) -> None:
    (adapter / "adapter_config.json").write_text("{")


_EMBEDDING = {"base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(8, 199)}
BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "no configuration": (lambda folder: (folder / "adapter_config.json").unlink(), "config.json cannot be read"),
    "no JSON": (_no_json, "adapter_config.json"),
    "no weights": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "neither adapter_model"),
    "truncated": (_truncate, "truncated"),
    "NaN": (_tensors(_set_nan), "NaN"),
    "half of a pair": (
        _tensors(lambda tensors: _drop(tensors, "1.mlp.up_proj.lora_B.weight")),
        "lacks lora_B of model",
    ),
    "a module less": (_tensors(_drop_down), r"model\.layers\.2\.mlp\.down_proj"),
    "another model's layers": (
        _tensors(lambda tensors: _rename(tensors, "layers.2", "layers.31")),
        r"no layer model\.layers\.31",
    ),
    "another model's shapes": (_add_pair("model.layers.0.self_attn.q_proj", 128, 64), "another model's adapter"),
    "another rank than it says": (_config(r=4), "have rank 8"),
    "the output matrix": (_add_pair("lm_head", 64, 199), "lm_head takes no adapter"),
    "an embedding": (_tensors(lambda tensors: tensors.update(_EMBEDDING)), "lora_embedding_A is not served"),
    "modules_to_save": (_config(modules_to_save=["lm_head"]), "modules_to_save"),
    "DoRA": (_config(use_dora=True), "use_dora"),
    "bias": (_config(bias="all"), "bias 'all'"),
    "biases of B": (_config(lora_bias=True), "lora_bias"),
    "PiSSA": (_config(init_lora_weights="pissa_niter_4"), "changes the base model's weights"),
    "parameters of experts": (_config(target_parameters=["mlp.experts.gate_up_proj"]), "target_parameters"),
    "another method": (_config(peft_type="IA3"), "IA3"),
    "no expression": (_config(target_modules="(q_proj"), "regular expression"),
    "code in a pickle": (_pickle_code, r"adapter_model\.bin"),
}


@pytest.mark.parametrize("what", list(BAD))
def test_refused_by_name(what: str, base: Path, tmp_path: Path) -> None:
    change, message = BAD[what]
    targets = targets_of(base)
    adapter = write_adapter(tmp_path / "adapter", targets, base_model_name_or_path="some/model")
    change(adapter)
    with pytest.raises(AdapterError, match=message):
        read_adapter(adapter, targets, max_rank=16, dtype=torch.float32)
    if what == "NaN":  # all else shows without the weights
        assert check_adapter(adapter, targets, max_rank=16) == 8
    else:
        with pytest.raises(AdapterError, match=message):
            check_adapter(adapter, targets, max_rank=16)


def test_checking_reads_no_weights(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = targets_of(base)
    for pickled in (False, True):
        adapter = write_adapter(tmp_path / str(pickled), targets, rank=5, pickled=pickled)
        with monkeypatch.context() as patch:
            patch.setattr("blade_llm.lora.reader.load_file", None)
            patch.setattr("torch.load", None)
            assert check_adapter(adapter, targets, max_rank=16) == 5


def test_a_rank_over_the_limit_names_the_flag(base: Path, tmp_path: Path) -> None:
    targets = targets_of(base)
    adapter = write_adapter(tmp_path / "adapter", targets, rank=64, base_model_name_or_path="some/model")
    with pytest.raises(AdapterError, match=r"some/model.*--max_lora_rank 64"):
        read_adapter(adapter, targets, max_rank=16, dtype=torch.float32)
    with pytest.raises(AdapterError, match=r"some/model.*--max_lora_rank 64"):
        check_adapter(adapter, targets, max_rank=16)


def test_experts_are_refused_by_name(tmp_path: Path) -> None:
    save_row(tmp_path / "base", ROWS["mixtral"])
    targets = targets_of(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", targets)
    _add_pair("model.layers.0.block_sparse_moe.experts.1.w1", 64, 112)(adapter)
    with pytest.raises(AdapterError, match=r"experts\.1\.w1.*experts"):
        read_adapter(adapter, targets, max_rank=16, dtype=torch.float32)


@pytest.mark.parametrize(
    "module",
    ["self_attn.kv_b_proj", "mlp.shared_experts.up_proj", "mlp.experts.1.up_proj", "mlp.experts", "mlp.gate"],
)
def test_what_deepseek_has_beside_linear_layers_is_refused_by_name(module: str, tmp_path: Path) -> None:
    save_row(tmp_path / "base", ROWS["deepseek-v2"])
    targets = targets_of(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", targets)
    _add_pair(f"model.layers.1.{module}", 64, 64)(adapter)
    with pytest.raises(AdapterError, match=rf"model\.layers\.1\.{module}\b.* takes? no adapter.*merge"):
        read_adapter(adapter, targets, max_rank=16, dtype=torch.float32)


def test_the_digest_is_of_the_content(base: Path, tmp_path: Path) -> None:
    """Where it lies, and in which file, is nothing to it; weights and scales are."""
    targets = targets_of(base)

    def digest(name: str, **options: Any) -> bytes:
        return read_adapter(
            write_adapter(tmp_path / name, targets, **options), targets, max_rank=16, dtype=torch.float32
        ).digest

    first = digest("a")
    assert digest("b") == digest("pickled", pickled=True) == first
    assert len({first, digest("c", seed=1), digest("d", lora_alpha=3)}) == 3
