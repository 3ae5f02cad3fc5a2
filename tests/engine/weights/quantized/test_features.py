"""Quantised checkpoints with everything else that models are served with: kinds of steps, ranks, stages, adapters,
draft tokens, mixtures of experts, latent attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.adapters import targets_of, write_adapter
from engine_support.compressed_tensors import W4, compressed
from engine_support.families import ROWS, save_row
from engine_support.family_proof import SCENARIOS, Comparison
from engine_support.feature_load import check_equal, core_for, free_drafts, requests_of, run
from engine_support.heads import save_with_mtp
from engine_support.packed_starts import keep_small_models, names_read
from engine_support.pairwise import in_turn
from engine_support.quantized_checkpoints import SIZES, awq, float8, gptq, quantize_folder, save_quantized
from engine_support.runner_driver import Driver, logits_beside, prompt_of
from engine_support.thread_ranks import thread_ranks
from engine_support.tiny_models import engine_config, load_reference, reference_logits
from safetensors.torch import load_file

from blade_llm.check.memory_fit import check_memory_fit
from blade_llm.config import SpeculativeConfig
from blade_llm.kernels.linear.affine import AffineLinear, StackedLinear
from blade_llm.kernels.linear.native import is_available
from blade_llm.lora.reader import read_adapter
from blade_llm.models.dtypes import DTypeName
from blade_llm.models.errors import UnsupportedModelError, UnsupportedSettingError
from blade_llm.models.implementation import read_model_config
from blade_llm.models.memory import activation_bytes, weight_bytes
from blade_llm.models.sharding import shard_model, tensor_parallel_problem
from blade_llm.runner import build_runner
from blade_llm.spec.quantization.weights import dequantized_bytes


def float8_weights(size: int) -> Any:
    """8-bit floats in square blocks, by activations that are not rounded: test_w8a8.py has those."""
    return compressed({"type": "float", "strategy": "block", "block_structure": [size, size]}, "float-quantized")


FORMS = {
    "gptq": gptq(4, 32, symmetric=False),
    "awq": awq(16),
    "fp8": float8_weights(32),
    "compressed-tensors": compressed({"num_bits": 8, "type": "int", "strategy": "channel"}, "int-quantized"),
}


@pytest.fixture(scope="module", params=list(FORMS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    return folder, save_quantized(folder, "qwen2", *FORMS[request.param], **SIZES)


@pytest.fixture(scope="module")
def ordered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ordered")
    save_quantized(folder, "qwen2", *gptq(4, 16, act_order=True), **SIZES)
    return folder


def test_all_kinds_of_steps(model: tuple[Path, Any]) -> None:
    folder, reference = model
    compare = Comparison(build_runner(engine_config(folder)), reference)
    for scenario in SCENARIOS.values():
        scenario(compare)


def test_bf16_is_as_near_as_the_plain_model(model: tuple[Path, Any]) -> None:
    folder, reference = model
    expected = reference_logits(reference, prompt_of(40))[-1]
    errors = []
    for own in (folder / "plain", folder):
        driver = Driver(build_runner(engine_config(own, dtype="bfloat16")))
        driver.enter(0, prompt_of(40))
        driver.step({0: 40})
        errors.append(float((driver.logits[0].float() - expected).norm() / expected.norm()))
    assert errors[1] < 1.3 * errors[0] < 0.05


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_deterministic_logits_do_not_depend_on_the_batch(model: tuple[Path, Any], dtype: DTypeName) -> None:
    config = engine_config(model[0], deterministic=True, dtype=dtype)
    assert torch.equal(logits_beside(build_runner(config), 0), logits_beside(build_runner(config), 4))


LAYOUTS = [(2, 1), (4, 1), (1, 2), (2, 3)]
"""Ranks of each stage, stages."""
CHOSEN = {
    "gptq": [(4, 1), (1, 2)],
    "awq": [(2, 1), (2, 3)],
    "fp8": [(4, 1), (2, 3)],
    "compressed-tensors": [(2, 1), (1, 2)],
}
"""Layouts of each form, of which the long tests have all."""


@pytest.mark.parametrize(
    ("model", "size", "stages"),
    [
        pytest.param(form, *layout, marks=[] if layout in CHOSEN[form] else pytest.mark.soak)
        for form in FORMS
        for layout in LAYOUTS
    ],
    indirect=["model"],
    scope="module",
)
def test_ranks_and_stages(model: tuple[Path, Any], size: int, stages: int) -> None:
    """Also where ranks divide groups and blocks: 96 inputs of an MLP, in groups of 32, make 24 for each of four."""
    folder, reference = model
    SCENARIOS["prefill_and_decode"](Comparison(thread_ranks(folder, size, stages), reference))  # type: ignore[arg-type]


@pytest.mark.parametrize(("actorder", "size"), in_turn([None, "weight", "group", True], [2, 4]))
def test_ranks_divide_act_order(actorder: Any, size: int, tmp_path: Path) -> None:
    """Of GPTQ (None) and compressed-tensors, in which ``weight`` changes nothing of what is stored."""
    form = gptq(4, 16, symmetric=False, act_order=True)
    if actorder is not None:
        shuffled = actorder != "weight"
        form = compressed({**W4, "actorder": actorder}, "pack-quantized", shuffled=shuffled)
    reference = save_quantized(tmp_path, "qwen2", *form, **SIZES)
    assert tensor_parallel_problem(read_model_config(tmp_path), size) is None
    item = check_memory_fit(engine_config(tmp_path, tensor_parallel_size=size), limit=1 << 34)
    assert item.status == "PASS"
    SCENARIOS["prefill_and_decode"](Comparison(thread_ranks(tmp_path, size), reference))  # type: ignore[arg-type]


def test_ranks_with_act_order_in_bf16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Native kernels take what fills up groups, and read it packed at the next start."""
    keep_small_models(monkeypatch)
    form = gptq(4, 32, symmetric=False, act_order=True)
    reference = save_quantized(tmp_path / "model", "qwen2", *form, **{**SIZES, "intermediate_size": 256})
    expected = reference_logits(reference, prompt_of(40))[-1]
    found = []
    cache: dict[str, Any] = {"packed_cache_dir": str(tmp_path / "cache"), "packed_cache_bytes": 1 << 40}
    for size, options in ((1, {}), (2, {}), (2, cache), (2, cache)):
        read = names_read(monkeypatch)
        driver = Driver(thread_ranks(tmp_path / "model", size, dtype="bfloat16", **options))  # type: ignore[arg-type]
        driver.enter(0, prompt_of(40))
        driver.step({0: 40})
        found.append(driver.logits[0].float())
    errors = [float((logits - expected).norm() / expected.norm()) for logits in found]
    assert errors[1] < 1.5 * errors[0] < 0.1
    assert torch.equal(found[1], found[2])
    assert torch.equal(found[1], found[3])
    assert any(name.endswith("qweight") for name in read) != is_available()


def test_the_memory_plan_counts_what_fills_up_groups(tmp_path: Path) -> None:
    """Of a rank's part with act-order."""
    folders = [tmp_path / name for name in ("plain-order", "act-order")]
    measured, estimated = [], []
    for folder, act_order in zip(folders, (False, True), strict=True):
        save_quantized(folder, "qwen2", *gptq(4, 32, act_order=act_order), **{**SIZES, "intermediate_size": 512})
        measured.append(thread_ranks(folder, 2).memory_plan.weights)
        estimated.append(weight_bytes(shard_model(read_model_config(folder), 0, 2), "float32"))
    assert measured[1] > measured[0]
    assert estimated[1] - estimated[0] == pytest.approx(measured[1] - measured[0], rel=0.3)


def test_adapters(model: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = model
    targets = targets_of(folder)
    adapter = write_adapter(tmp_path / "adapter", targets)
    weights = read_adapter(adapter, targets, max_rank=16, dtype=torch.float32)
    tokens, logits = [], []
    for own in (folder / "plain", folder):
        driver = Driver(build_runner(engine_config(own, enable_lora=True)))
        driver.place_adapter(2, weights)
        driver.adapter = 2
        tokens.append(driver.generate(0, prompt_of(40), 16))
        logits.append(driver.logits[0])
    assert tokens[0] == tokens[1]
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=1e-4)
    bare = Driver(build_runner(engine_config(folder)))
    assert bare.generate(0, prompt_of(40), 16) != tokens[0]


def test_draft_tokens_and_all_that_a_request_can_set(model: tuple[Path, Any]) -> None:
    folder, _ = model
    requests = requests_of(8)
    options: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 256}
    plain = run(core_for(engine_config(folder / "plain", **options)), requests, stagger=1)
    speculative = SpeculativeConfig(method="draft", draft_model=str(folder), gamma=3)
    config = engine_config(folder, speculative=speculative, **options)
    drafted = run(core_for(config, build_runner(config), step_seconds=free_drafts()), requests, stagger=1)
    for name, result in drafted.items():
        check_equal(result, plain[name])


@pytest.mark.parametrize("row", ["qwen3", "deepseek-v3"])
def test_layers_for_multi_token_prediction(row: str, tmp_path: Path) -> None:
    """They are quantised as the others, and draft the same tokens."""
    save_with_mtp(tmp_path / "plain", row)
    quantize_folder(tmp_path / "plain", tmp_path / "quantised", *float8_weights(16))
    scales = [name for name in load_file(tmp_path / "quantised" / "model.safetensors") if name.endswith("weight_scale")]
    assert any(name.startswith(("mtp.layers.0.", "model.layers.3.")) for name in scales)
    found = []
    for folder in (tmp_path / "plain", tmp_path / "quantised"):
        config = engine_config(folder, speculative=SpeculativeConfig(method="mtp", gamma=3), max_model_len=256)
        core = core_for(config, build_runner(config), step_seconds=free_drafts())
        tokens = {name: result.tokens for name, result in run(core, requests_of(4), stagger=1).items()}
        counts = core.state(epoch="", sequence=0, draining=False).speculation
        assert counts is not None
        found.append((tokens, counts.accepted_tokens))
    assert found[0] == found[1]
    assert found[0][1] > 0


@pytest.mark.parametrize(("name", "form"), in_turn(["deepseek-v3", "mixtral", "qwen3-moe"], ["fp8", "gptq"]))
def test_mixtures_and_latent_attention(name: str, form: str, tmp_path: Path) -> None:
    """Their weights become floats again where no kernel takes them as they are."""
    save_row(tmp_path / "plain", ROWS[name], torch.float16)
    quantize_folder(tmp_path / "plain", tmp_path / "quantised", *(float8_weights(16) if form == "fp8" else gptq(4, -1)))
    compare = Comparison(build_runner(engine_config(tmp_path / "quantised")), load_reference(tmp_path / "plain"))
    SCENARIOS["prefill_and_decode"](compare)


def test_the_memory_plan_counts_what_is_kept(model: tuple[Path, Any]) -> None:
    folder, _ = model
    estimated, measured = (
        [weigh(own) for own in (folder / "plain", folder)]
        for weigh in (
            lambda own: weight_bytes(read_model_config(own), "float32"),
            lambda own: build_runner(engine_config(own)).memory_plan.weights,
        )
    )
    assert measured[1] < 0.6 * measured[0]
    assert estimated[0] - estimated[1] == pytest.approx(measured[0] - measured[1], rel=0.05)


def test_the_memory_plan_counts_what_becomes_floats(model: tuple[Path, Any]) -> None:
    folder, _ = model
    plain, quantised = (
        activation_bytes(read_model_config(own), "bfloat16", max_batch_tokens=256, max_num_seqs=8)
        for own in (folder / "plain", folder)
    )
    shapes = [(128, 64), (64, 64), (192, 64), (64, 96)]
    assert quantised - plain == max(dequantized_bytes(256, *shape) for shape in shapes) > 256 * 64 * 4


def test_quant_is_refused(model: tuple[Path, Any]) -> None:
    config = engine_config(model[0], quant="int8", dtype="bfloat16")
    with pytest.raises(UnsupportedSettingError, match="--quant int8: the checkpoint's weights are quantised already"):
        build_runner(config)
    item = check_memory_fit(config, limit=1 << 34)
    assert item.status == "FAILED"
    assert "--quant int8: the checkpoint's weights are quantised already" in item.detail


def test_random_weights_are_refused(model: tuple[Path, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="--load_format dummy makes weights that are not quantised"):
        build_runner(engine_config(model[0], load_format="dummy"))


@pytest.mark.parametrize(
    ("form", "dtype", "said"),
    [
        (float8((32, 16)), "bfloat16", (12, "groups of 16")),
        (float8((32, 32)), "bfloat16", None if is_available() else (12, "no native operators")),
        (gptq(4, 16), "bfloat16", (12, "groups of 16")),
        (
            gptq(4, 32),
            "float32",
            (12, "activations in float32"),
        ),
        (gptq(4, 32), "bfloat16", None if is_available() else (12, "no native operators")),
    ],
    ids=["fp8", "fast fp8", "groups", "float32", "fast"],
)
def test_what_becomes_floats_is_said_once(
    form: Any, dtype: DTypeName, said: tuple[int, str] | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_quantized(tmp_path, "qwen2", *form, **SIZES)
    with caplog.at_level("WARNING"):
        build_runner(engine_config(tmp_path, dtype=dtype))
    found = [record.getMessage() for record in caplog.records if "become floats" in record.getMessage()]
    assert len(found) == (said is not None)
    if said is not None:
        count, why = said
        assert f"{count} quantised weights become floats each time they are multiplied ({why}), " in found[0]


def test_a_stack_of_one_form_is_one_weight(ordered: Path, model: tuple[Path, Any]) -> None:
    layer = build_runner(engine_config(ordered)).model.layers[0]  # type: ignore[attr-defined]
    assert isinstance(layer.attention.qkv.packed, AffineLinear)
    if "gptq" in model[0].name:
        layer = build_runner(engine_config(model[0])).model.layers[0]  # type: ignore[attr-defined]
        assert isinstance(layer.mlp.up.packed, AffineLinear)


def test_parts_with_orders_of_their_own(tmp_path: Path) -> None:
    """Each is a layer of its own then."""
    config, _ = gptq(4, 16, act_order=True)

    def quantize(module: str, weight: torch.Tensor) -> Any:
        return gptq(4, 16, act_order=True, seed=len(module) + ord(module[-6]))[1](module, weight)

    reference = save_quantized(tmp_path, "qwen2", config, quantize, **SIZES)
    runner = build_runner(engine_config(tmp_path))
    assert isinstance(runner.model.layers[0].attention.qkv.packed, StackedLinear)  # type: ignore[attr-defined]
    SCENARIOS["prefill_and_decode"](Comparison(runner, reference))
