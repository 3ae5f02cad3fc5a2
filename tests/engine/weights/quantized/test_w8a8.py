"""Checkpoints whose activations are rounded, too, and ``--quant w8a8``: what a model of them says, and everything else
that models are served with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.adapters import targets_of, write_adapter
from engine_support.compressed_tensors import (
    F8,
    FP8_GROUPS,
    FP8_STATIC,
    FP8_TOKENS,
    INT8_STATIC,
    INT8_TOKENS,
    W4,
    W8,
    compressed,
)
from engine_support.families import ROWS, save_row
from engine_support.feature_load import check_equal, core_for, free_drafts, requests_of, run
from engine_support.native_isa import needs_native
from engine_support.quantized_checkpoints import (
    SIZES,
    float8,
    load_rounding_reference,
    quantize_folder,
    save_quantized,
)
from engine_support.rounded_activations import rounding_of
from engine_support.runner_driver import Driver, logits_beside, prompt_of
from engine_support.thread_ranks import thread_ranks
from engine_support.tiny_models import engine_config, reference_greedy, reference_logits, save_model
from engine_support.tiny_text import CONFIG, write_tokenizer
from safetensors.torch import load_file, save_file

from blade_llm.check.memory_fit import check_memory_fit
from blade_llm.check.model import check_model
from blade_llm.config import SpeculativeConfig
from blade_llm.kernels.linear.affine import StackedLinear
from blade_llm.kernels.linear.native import NativeLinear
from blade_llm.lora.reader import read_adapter
from blade_llm.models.errors import ModelFilesError, UnsupportedModelError
from blade_llm.models.implementation import read_model_config
from blade_llm.runner import build_runner

BLOCKS = {"type": "float", "strategy": "block", "block_structure": [32, 32]}
FORMS = {
    "int8": compressed(W8, "int-quantized", rounded=INT8_TOKENS),
    "int8, static": compressed(W8, "int-quantized", rounded=INT8_STATIC),
    "int8, packed": compressed({"num_bits": 8, "strategy": "channel"}, "pack-quantized", rounded=INT8_TOKENS),
    "fp8": compressed(F8, "float-quantized", rounded=FP8_TOKENS),
    "fp8, static": compressed({**F8, "strategy": "tensor"}, "float-quantized", rounded=FP8_STATIC),
    "fp8, groups": compressed(BLOCKS, "float-quantized", rounded=FP8_GROUPS),
    "deepseek": float8((32, 32)),
    "one scale": float8(None),
}
MAIN = ["int8", "fp8", "deepseek"]


@pytest.fixture(scope="module", params=MAIN)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    return folder, save_quantized(folder, "qwen2", *FORMS[request.param], **SIZES)


def logits_of(runner: Any, length: int = 40) -> torch.Tensor:
    driver = Driver(runner)
    driver.enter(0, prompt_of(length))
    driver.step({0: length})
    return driver.logits[0].float()


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_greedy_tokens_are_those_of_rounded_activations(form: Any, tmp_path: Path) -> None:
    """transformers' model with the equations in front of its layers. Weights alone would make other logits."""
    reference = save_quantized(tmp_path, "llama", *form, **SIZES)
    runner = build_runner(engine_config(tmp_path))
    expected = reference_logits(reference, prompt_of(40))[-1]
    found = logits_of(runner)
    # By token, the largest value of an integer is a tie: the last bit of what comes before rounds it up or down.
    bound = 0.03 if form in (FORMS["int8"], FORMS["int8, packed"]) else 2e-3
    assert (found - expected).norm() < bound * expected.norm()
    plain = logits_of(build_runner(engine_config(tmp_path / "plain")))
    assert (plain - expected).norm() > 5e-3 * expected.norm()
    assert Driver(runner).generate(1, prompt_of(40), 16) == reference_greedy(reference, prompt_of(40), 16)


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_each_layer_multiplies_rounded_activations(form: Any, tmp_path: Path) -> None:
    """The very inputs that a layer gets, rounded by the equations, times the numbers that are stored."""
    save_quantized(tmp_path, "llama", *form, **SIZES)
    plain, stored = (load_file(folder / "model.safetensors") for folder in (tmp_path / "plain", tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    runner = build_runner(engine_config(tmp_path))
    checked = []
    for index, layer in enumerate(runner.model.layers):  # type: ignore[attr-defined]
        for linear, name in ((layer.attention.output, "self_attn.o_proj"), (layer.mlp.down, "mlp.down_proj")):
            module = f"model.layers.{index}.{name}"
            rounds, weight = rounding_of(config, stored, module), plain[f"{module}.weight"]
            assert rounds is not None

            def call(x: torch.Tensor, packed: Any = linear.packed, w: Any = weight, rounds: Any = rounds) -> Any:
                y = packed(x)
                torch.testing.assert_close(y, rounds(x) @ w.T, atol=1e-6, rtol=1e-5)
                checked.append(float((y - x @ w.T).norm() / y.norm()))
                return y

            linear.packed = call
    logits_of(runner)
    assert len(checked) == 6
    assert min(checked) > 1e-3


@needs_native
@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_bf16_takes_the_native_kernels(form: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One weight for all that have the same inputs."""
    reference = save_quantized(tmp_path, "llama", *form, **SIZES)
    with caplog.at_level("INFO"):
        runner = build_runner(engine_config(tmp_path, dtype="bfloat16"))
    assert "become floats" not in caplog.text
    assert "activations are rounded in 21 of them to " in caplog.text
    layer = runner.model.layers[0]  # type: ignore[attr-defined]
    for linear in (layer.mlp.up, layer.mlp.down, layer.attention.qkv, layer.attention.output):
        assert isinstance(linear.packed, NativeLinear)
    plain, own = (build_runner(engine_config(folder, dtype="bfloat16")) for folder in (tmp_path / "plain", tmp_path))
    expected = reference_logits(reference, prompt_of(40))[-1]
    unrounded = logits_of(build_runner(engine_config(tmp_path / "plain")))
    noise, error = (
        float((a - b).norm() / b.norm()) for a, b in ((logits_of(plain), unrounded), (logits_of(own), expected))
    )
    assert error < 0.2
    assert noise < 0.05


def test_a_scale_that_is_none_is_named(tmp_path: Path) -> None:
    save_quantized(tmp_path, "qwen2", *FORMS["int8, static"], **SIZES)
    file, name = tmp_path / "model.safetensors", "model.layers.0.mlp.down_proj.input_scale"
    tensors = load_file(file)
    save_file({**tensors, name: torch.zeros(1)}, file)
    with pytest.raises(ModelFilesError, match=f"{name} is 0.0: a scale of activations is positive; take another"):
        build_runner(engine_config(tmp_path))
    del tensors[name]
    save_file(tensors, file)
    with pytest.raises(ModelFilesError, match=r"1 of \d+ tensors are missing: .*down_proj.input_scale"):
        build_runner(engine_config(tmp_path))


@pytest.mark.parametrize("form", ["int8, static", "fp8, static"])
def test_layers_with_the_same_inputs_and_other_scales(form: str, tmp_path: Path) -> None:
    """Each rounds by its own."""
    save_quantized(tmp_path, "qwen2", *FORMS[form], **SIZES)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for index in range(3):
        tensors[f"model.layers.{index}.self_attn.k_proj.input_scale"] *= 3
    save_file(tensors, file)
    reference = load_rounding_reference(tmp_path)
    runner = build_runner(engine_config(tmp_path))
    assert isinstance(runner.model.layers[0].attention.qkv.packed, StackedLinear)  # type: ignore[attr-defined]
    expected = reference_logits(reference, prompt_of(40))[-1]
    assert (logits_of(runner) - expected).norm() < 2e-3 * expected.norm()


def test_transformers_name_of_a_static_scale(tmp_path: Path) -> None:
    config, quantize = FORMS["one scale"]

    def static(module: str, weight: torch.Tensor) -> Any:
        made = quantize(module, weight)
        return made and ({**made[0], f"{module}.{name}": torch.tensor(0.004)}, made[1])

    found = []
    for name in ("input_scale", "activation_scale"):
        folder = tmp_path / name
        save_quantized(folder, "qwen2", {**config, "activation_scheme": "static"}, static, **SIZES)
        found.append(logits_of(build_runner(engine_config(folder))))
    assert torch.equal(found[0], found[1])
    save_quantized(tmp_path / "dynamic", "qwen2", config, quantize, **SIZES)
    assert not torch.equal(found[0], logits_of(build_runner(engine_config(tmp_path / "dynamic"))))


def test_an_unknown_scheme_is_named(tmp_path: Path) -> None:
    config, quantize = FORMS["one scale"]
    save_quantized(tmp_path, "qwen2", {**config, "activation_scheme": "block"}, quantize, **SIZES)
    with pytest.raises(
        (ModelFilesError, UnsupportedModelError), match="'block' is not supported; 'dynamic' and 'static'"
    ):
        read_model_config(tmp_path)


@pytest.mark.parametrize(
    ("weights", "form", "rounded", "why"),
    [
        (W8, "int-quantized", {**INT8_TOKENS, "symmetric": False}, "with zero points"),
        (W8, "int-quantized", {**INT8_TOKENS, "num_bits": 4}, "int of 4 bits, with weights of integers"),
        (W8, "int-quantized", FP8_TOKENS, "float of 8 bits, with weights of integers"),
        (W8, "int-quantized", {**INT8_TOKENS, "strategy": "group", "group_size": 32}, "'strategy' 'group' with"),
        (W8, "int-quantized", {**INT8_TOKENS, "dynamic": "local"}, "'strategy' 'token' with 'dynamic' 'local'"),
        ({**W8, "symmetric": False}, "int-quantized", INT8_TOKENS, "int8, with weights that are in groups, asymmetric"),
        (W4, "pack-quantized", INT8_TOKENS, "int8, with weights that are in groups, asymmetric or not of 8 bits"),
        (F8, "float-quantized", {**FP8_STATIC, "strategy": "channel"}, "'strategy' 'channel' with 'dynamic' False"),
    ],
)
def test_rounding_that_is_not_computed_is_said(
    weights: Any, form: str, rounded: Any, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The model is served, as of weights alone."""
    save_quantized(tmp_path, "qwen2", *compressed(weights, form, rounded=rounded), **SIZES)
    with caplog.at_level("WARNING"):
        runner = build_runner(engine_config(tmp_path))
    assert f"activations of 21 linear layers are not rounded, though the checkpoint says how ({why}" in caplog.text
    plain = logits_of(build_runner(engine_config(tmp_path / "plain")))
    assert (logits_of(runner) - plain).norm() < 1e-5 * plain.norm()


@pytest.mark.parametrize(
    ("form", "status", "said"),
    [
        (
            FORMS["int8"],
            "PASS",
            "activations are rounded in 14 of them to int8 by token; native kernels multiply all of",
        ),
        (
            FORMS["fp8, static"],
            "PASS",
            "activations are rounded in 14 of them to fp8, static; native kernels multiply all",
        ),
        (FORMS["deepseek"], "PASS", "(FP8); activations are rounded in 14 of them to fp8 by 32 inputs; native kernels"),
        (
            float8((32, 16)),
            "PASS",
            "kernels multiply 0 of them as they are, on a CPU in bf16; 14, in groups that are no",
        ),
        (compressed(W4, "pack-quantized", rounded=INT8_TOKENS), "WARNING", "activations of 14 linear layers are not"),
    ],
)
def test_the_check_says_what_will_run(form: Any, status: str, said: str, tmp_path: Path) -> None:
    shape = {name: value for name, value in CONFIG.items() if name not in ("architectures", "rope_theta")}
    save_quantized(tmp_path, "qwen2", *form, **shape)
    write_tokenizer(tmp_path)
    item = check_model(tmp_path)
    assert item.status == status, item.detail
    assert "14 linear layers are quantised in the checkpoint (" in item.detail
    assert said in item.detail


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_deterministic_logits_do_not_depend_on_the_batch(model: tuple[Path, Any], dtype: Any) -> None:
    config = engine_config(model[0], deterministic=True, dtype=dtype)
    assert torch.equal(logits_beside(build_runner(config), 0), logits_beside(build_runner(config), 4))


@pytest.mark.parametrize(("size", "stages"), [(2, 1), (1, 2)])
def test_ranks_and_stages(model: tuple[Path, Any], size: int, stages: int) -> None:
    """A rank that has some of a layer's inputs finds a scale for these alone: nearly the same."""
    folder, reference = model
    expected = reference_logits(reference, prompt_of(40))[-1]
    found = logits_of(thread_ranks(folder, size, stages))
    assert (found - expected).norm() < (2e-3 if size == 1 else 0.1) * expected.norm()


def test_adapters_add_to_what_rounded_activations_make(model: tuple[Path, Any], tmp_path: Path) -> None:
    """What an adapter of zeros adds is nothing, and others see the activations as they are."""
    folder, _ = model
    targets = targets_of(folder)
    weights = read_adapter(write_adapter(tmp_path / "adapter", targets), targets, max_rank=16, dtype=torch.float32)
    runner = build_runner(engine_config(folder, enable_lora=True))
    layer = runner.model.layers[0].attention.output  # type: ignore[attr-defined]
    driver = Driver(runner)
    driver.place_adapter(2, weights)
    tokens = driver.generate(0, prompt_of(40), 12)
    assert tokens == Driver(build_runner(engine_config(folder))).generate(0, prompt_of(40), 12)
    seen: list[torch.Tensor] = []
    packed = layer.packed
    layer.packed = lambda x: seen.append(x.clone()) or packed(x)
    driver.adapter = 2
    assert driver.generate(1, prompt_of(40), 12) != tokens
    activations = packed._weight.activations if hasattr(packed, "_weight") else packed._activations
    assert all(not torch.equal(x, activations.rounded(x)) for x in seen if x.any())


@pytest.mark.parametrize("prompt_cache", [False, True])
def test_draft_tokens_and_all_that_a_request_can_set(model: tuple[Path, Any], prompt_cache: bool) -> None:
    """The same tokens with draft tokens and without, in batches and alone."""
    folder, _ = model
    requests = requests_of(8)
    options: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 256, "deterministic": True, "dtype": "bfloat16"}
    options["enable_prompt_cache"] = prompt_cache
    plain = run(core_for(engine_config(folder, **options)), requests, stagger=1)
    speculative = SpeculativeConfig(method="draft", draft_model=str(folder), gamma=3)
    config = engine_config(folder, speculative=speculative, **options)
    drafted = run(core_for(config, build_runner(config), step_seconds=free_drafts()), requests, stagger=1)
    for name, result in drafted.items():
        check_equal(result, plain[name])


@pytest.mark.parametrize("name", ["mixtral", "deepseek-v3"])
def test_experts_are_as_precise_as_their_weights(name: str, tmp_path: Path) -> None:
    """They, and what latent attention expands keys and values with, are floats of the model's type."""
    save_row(tmp_path / "plain", ROWS[name], torch.float16)
    quantize_folder(tmp_path / "plain", tmp_path / "quantised", *FORMS["int8"])
    logits = [logits_of(build_runner(engine_config(tmp_path / own))) for own in ("quantised", "plain")]
    error = float((logits[0] - logits[1]).norm() / logits[1].norm())
    assert 1e-4 < error < 0.2


@needs_native
@pytest.mark.parametrize("options", [{}, {"deterministic": True}, {"enable_lora": True}])
def test_quant_w8a8_rounds_while_loading(options: dict[str, Any], tmp_path: Path) -> None:
    save_model(tmp_path, "qwen2", torch.bfloat16, **SIZES)
    found = {
        quant: logits_of(build_runner(engine_config(tmp_path, quant=quant, dtype="bfloat16", **options)))
        for quant in ("none", "int8", "w8a8")
    }
    errors = {quant: float((logits - found["none"]).norm() / found["none"].norm()) for quant, logits in found.items()}
    assert errors["int8"] < errors["w8a8"] < 0.1
    memory = [
        build_runner(engine_config(tmp_path, quant=quant, dtype="bfloat16")).memory_plan.weights
        for quant in ("none", "w8a8")
    ]
    assert memory[1] < 0.8 * memory[0]
    assert check_memory_fit(engine_config(tmp_path, quant="w8a8", dtype="bfloat16"), limit=1 << 34).status == "PASS"


@needs_native
def test_quant_w8a8_leaves_activations_of_experts(tmp_path: Path) -> None:
    save_row(tmp_path, ROWS["mixtral"], torch.bfloat16)
    runner = build_runner(engine_config(tmp_path, quant="w8a8", dtype="bfloat16"))
    assert torch.isfinite(logits_of(runner)).all()
    for layer in runner.model.layers:  # type: ignore[attr-defined]
        assert layer.attention.qkv.packed.form.kind == "w8a8"
        assert {part.form.kind for pair in layer.mlp.experts._linears for part in pair} == {"int8"}


def test_an_older_name_of_the_configuration(tmp_path: Path) -> None:
    config, quantize = FORMS["int8"]
    save_quantized(tmp_path, "qwen2", config, quantize, **SIZES)
    expected = logits_of(build_runner(engine_config(tmp_path)))
    fields = json.loads((tmp_path / "config.json").read_text())
    fields["compression_config"] = fields.pop("quantization_config")
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert torch.equal(logits_of(build_runner(engine_config(tmp_path))), expected)
