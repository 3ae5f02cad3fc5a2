"""Reading ``config.json``: the shape, what is refused, and agreement with transformers about names and shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hub_support.tiny_model import CONFIG, make_model

from blade_llm.cache.sizing import kv_token_bytes
from blade_llm.models.config import ModelConfig, load_model_config
from blade_llm.models.dtypes import cpu_computes_bf16, parse_dtype, resolve_dtype
from blade_llm.models.errors import ModelFilesError, UnsupportedModelError
from blade_llm.models.tensors import expected_tensors
from blade_llm.spec.rope import LinearScaling, Llama3Scaling, RopeScaling

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def refused(folder: Path, kind: type[ModelFilesError] = ModelFilesError) -> str:
    with pytest.raises(ModelFilesError) as caught:
        load_model_config(folder)
    assert type(caught.value) is kind
    return str(caught.value)


def biases(config: ModelConfig) -> tuple[bool, bool, bool]:
    (layer,) = set(config.decoder.layers)
    return layer.attention.qkv_bias, layer.attention.output_bias, layer.mlp.bias


def test_the_shape_is_read(tmp_path: Path) -> None:
    config = load_model_config(make_model(tmp_path))
    assert (config.num_layers, config.num_heads, config.kv.num_heads, config.kv.head_dim) == (2, 4, 2, 4)
    assert biases(config) == (True, False, False)
    assert config.eos_token_ids == (1,)
    assert kv_token_bytes(config, "bfloat16") == 2 * 2 * 2 * 4 * 2


def test_all_end_of_sequence_ids_are_collected(tmp_path: Path) -> None:
    make_model(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 1]}))
    assert load_model_config(tmp_path).eos_token_ids == (1, 7)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 10**6]}))
    assert load_model_config(tmp_path).eos_token_ids == (1, 7), (
        "an id beyond the vocabulary cannot be masked or sampled"
    )


def test_qwen2_bias_is_where_qwen2_has_it_whatever_the_config_says(tmp_path: Path) -> None:
    config = load_model_config(make_model(tmp_path, attention_bias=False, mlp_bias=True))
    assert biases(config) == (True, False, False)


@pytest.mark.parametrize(
    ("fields", "theta", "scaling"),
    [
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_theta": None}, 1e4, None),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 1e4, LinearScaling(2.0)),
        ({"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, 7.0, None),
        ({"rope_scaling": LLAMA3}, 1e4, Llama3Scaling(8.0, 1.0, 4.0, 128)),
    ],
)
def test_rope_of_old_and_new_configs(tmp_path: Path, fields: dict, theta: float, scaling: RopeScaling | None) -> None:
    rope = load_model_config(make_model(tmp_path, **fields)).decoder.layers[0].attention.rope
    assert rope is not None
    assert (rope.theta, rope.scaling) == (theta, scaling)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"architectures": ["MambaForCausalLM"]},
            "'MambaForCausalLM' is not supported; use a model of one of these: Llama",
        ),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantised checkpoints of kind 'bitsandbytes'"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layers of kind 'chunked_attention'"),
        ({"rope_scaling": {"rope_type": "xpos", "factor": 4.0}}, "rope scaling 'xpos' is not supported"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "differ between layer types"),
        ({"hidden_act": "mish"}, "activation 'mish'"),
        ({"partial_rotary_factor": 0.5}, "'partial_rotary_factor'"),
    ],
)
def test_what_would_compute_wrongly_is_refused(tmp_path: Path, fields: dict, reason: str) -> None:
    message = refused(make_model(tmp_path, **fields), UnsupportedModelError)
    assert message.startswith(f"{tmp_path / 'config.json'}: ")
    assert reason in message


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"architectures": None}, "'architectures' is missing or empty"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"hidden_size": "16"}, "'hidden_size' must be a positive integer, not '16'"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' must be a positive integer, not 0"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "hidden_size 16 is not a multiple"),
        ({"head_dim": 5}, "head_dim 5 is odd"),
        ({"torch_dtype": "float8"}, "dtype 'float8' is not supported; use one of float32"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'factor' is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "'factor' must be a finite number above 0, not 0"),
        ({"rope_scaling": {"type": "linear", "factor": -2.0}}, "'factor' must be a finite number above 0, not -2.0"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "'factor' must be a finite number above 0, not '2'"),
        (
            {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 0}},
            "'original_max_position_embeddings' must",
        ),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "'low_freq_factor' 1 must be below"),
        ({"rope_theta": 0}, "'rope_theta' must be a finite number above 0, not 0"),
        ({"rope_theta": 10**400}, "must be a finite number above 0"),
        ({"rope_parameters": {"rope_theta": -1.0}}, "'rope_theta' must be a finite number above 0, not -1.0"),
        ({"rms_norm_eps": -1e-6}, "'rms_norm_eps' must be a finite number above 0, not -1e-06"),
        ({"rms_norm_eps": float("nan")}, "'rms_norm_eps' must be a finite number above 0, not nan"),
        ({"rms_norm_eps": "tiny"}, "'rms_norm_eps' must be a finite number above 0, not 'tiny'"),
    ],
)
def test_what_is_missing_or_senseless_is_named(tmp_path: Path, fields: dict, reason: str) -> None:
    assert reason in refused(make_model(tmp_path, **fields))


def test_missing_or_unreadable_files(tmp_path: Path) -> None:
    assert "does not exist; give --model a folder" in refused(tmp_path / "none")
    assert "config.json is missing" in refused(tmp_path)
    for text in ("{", "[]", "\xff", "[" * 100_000, '{"a":' * 100_000):
        (tmp_path / "config.json").write_text(text, encoding="latin-1")
        assert "JSON" in refused(tmp_path)


def test_dtype_names() -> None:
    assert [parse_dtype(name) for name in ("half", "float", "bfloat16")] == ["float16", "float32", "bfloat16"]
    with pytest.raises(ValueError, match="dtype 'int8' is not supported"):
        parse_dtype("int8")


def test_the_default_dtype_follows_checkpoint_and_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, native in (("fpu avx2 amx_bf16", True), ("fpu avx avx2", True), ("fpu avx f16c", False)):
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
        assert cpu_computes_bf16(tmp_path / "cpuinfo") is native
        monkeypatch.setattr("blade_llm.models.dtypes.cpu_computes_bf16", lambda native=native: native)
        assert resolve_dtype("auto", "bfloat16", on_gpu=False) == ("bfloat16" if native else "float32")
        assert resolve_dtype("auto", "float32", on_gpu=False) == "float32"
        assert resolve_dtype("auto", "float16", on_gpu=True) == "float16"
        assert resolve_dtype("half", "bfloat16", on_gpu=False) == "float16"


def test_torch_agrees_about_this_cpu() -> None:
    import torch

    assert cpu_computes_bf16() is bool(torch.cpu._is_avx2_supported())


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("Qwen2ForCausalLM", {}),
        ("Qwen2ForCausalLM", {"tie_word_embeddings": False}),
        ("LlamaForCausalLM", {"head_dim": 8, "tie_word_embeddings": False}),
        ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    ],
)
def test_names_and_shapes_are_those_of_transformers(tmp_path: Path, architecture: str, fields: dict) -> None:
    import torch
    import transformers

    raw = {**CONFIG, **fields, "architectures": [architecture]}
    settings = {name: value for name, value in raw.items() if name not in ("architectures", "torch_dtype")}
    config_class = getattr(transformers, architecture.removesuffix("ForCausalLM") + "Config")
    with torch.device("meta"):
        model = getattr(transformers, architecture)(config_class(**settings))
    theirs = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    assert expected_tensors(load_model_config(make_model(tmp_path, **raw))) == theirs


def test_code_that_comes_with_a_model_is_named_and_never_run(tmp_path: Path) -> None:
    folder = make_model(
        tmp_path,
        architectures=["OwnForCausalLM"],
        auto_map={"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"},
    )
    (folder / "modeling_own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(
        UnsupportedModelError, match=r"config\.json: architecture 'OwnForCausalLM' .*'auto_map'\) is never run"
    ):
        load_model_config(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rope_scaling": {"rope_type": "longrope", "original_max_position_embeddings": 1}},
            "must be above 1 for long",
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "rope_theta": 1}, "'rope_theta' must be above 1"),
        ({"partial_rotary_factor": float("inf"), "architectures": ["PhiForCausalLM"]}, "'partial_rotary_factor' must"),
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers' must be at most 10000"),
        ({"vocab_size": 32, "rope_scaling": {"rope_type": "yarn", "factor": 1e308}}, "infinity"),
    ],
)
def test_numbers_that_no_model_has(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    assert message in refused(make_model(tmp_path, **changes))


def test_yarn_extends_the_length_of_models_that_state_the_original_one(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    assert load_model_config(make_model(tmp_path, rope_scaling=yarn)).max_position_embeddings == 1024
    own = load_model_config(make_model(tmp_path, rope_scaling=yarn, max_position_embeddings=2000))
    assert own.max_position_embeddings == 2000
