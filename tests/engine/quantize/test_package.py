"""The package ``compressed-tensors`` makes the same bytes of the same weights, and reads ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.quantize_runs import FORMS, SIZES, quantize, stored_linears
from engine_support.stored_tensors import tensors_of
from engine_support.tiny_models import save_model
from safetensors.torch import load_file

from blade_llm.models.config import read_json

package = pytest.importorskip("compressed_tensors")


def scheme_of(folder: Path) -> Any:
    from compressed_tensors.quantization import QuantizationConfig

    config = QuantizationConfig.model_validate(read_json(folder, "config.json")["quantization_config"])
    return config.config_groups["group_0"]


def compressor_of(scheme: Any) -> Any:
    from compressed_tensors.compressors import BaseCompressor

    return BaseCompressor.load_from_registry(scheme.format)


def parameters_of(weight: torch.Tensor, scheme: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Its own scales and zero points of an fp32 weight."""
    from compressed_tensors.quantization.utils import calculate_qparams

    groups = weight.unflatten(1, (-1, scheme.weights.group_size or weight.shape[1]))
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), scheme.weights)
    return scale, zero


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS)
def test_the_same_bytes(tmp_path: Path, form: str, dtype: torch.dtype) -> None:
    """Of weights in fp32, which it would divide in bf16 otherwise, and our scales, which may differ in the last bit.

    Halves it rounds with the zero point added, we without: there it gets the numbers that ours stand for.
    """
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    save_model(tmp_path / "whole", "llama", dtype, **SIZES)
    assert quantize(tmp_path / "whole", tmp_path / "small", *FORMS[form]) == 0
    scheme, ours = scheme_of(tmp_path / "small"), tensors_of(tmp_path / "small")
    numbers = stored_linears(tmp_path / "small")
    compared = 0
    for name, weight in load_file(tmp_path / "whole" / "model.safetensors").items():
        module = name.removesuffix(".weight")
        own = {key.removeprefix(f"{module}."): value for key, value in ours.items() if key.startswith(f"{module}.")}
        if len(own) == 1:
            continue
        scale, zero = parameters_of(weight.float(), scheme)
        torch.testing.assert_close(own["weight_scale"], scale.to(dtype), rtol=4 * torch.finfo(dtype).eps, atol=0)
        state = {"weight": weight.float(), "weight_scale": own["weight_scale"].float(), "weight_zero_point": zero}
        if not scheme.weights.symmetric:
            found = unpack_from_int32(own["weight_zero_point"], scheme.weights.num_bits, scale.shape, packed_dim=0)
            assert (found.int() - zero.int()).abs().max() <= 1
            state |= {"weight": numbers[module], "weight_zero_point": found}
        theirs = compressor_of(scheme).compress(state, scheme)
        assert own.keys() == theirs.keys()
        for part in theirs.keys() - {"weight_scale"}:
            assert own[part].dtype == theirs[part].dtype, part
            assert torch.equal(own[part], theirs[part]), (name, part)
        compared += 1
    assert compared == 21


@pytest.mark.parametrize("form", FORMS)
def test_it_reads_the_numbers_that_we_read(tmp_path: Path, form: str) -> None:
    save_model(tmp_path / "whole", "llama", **SIZES)
    assert quantize(tmp_path / "whole", tmp_path / "small", *FORMS[form]) == 0
    scheme, stored = scheme_of(tmp_path / "small"), tensors_of(tmp_path / "small")
    for module, weight in stored_linears(tmp_path / "small").items():
        if module == "lm_head":
            continue
        own = {key.removeprefix(f"{module}."): value for key, value in stored.items() if key.startswith(f"{module}.")}
        read = compressor_of(scheme).decompress(own, scheme)["weight"]
        assert torch.equal(read.float(), weight), module


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("form", FORMS)
def test_transformers_loads_it(tmp_path: Path, family: str, form: str) -> None:
    """The logits are those of the numbers that we read, in fp32."""
    from engine_support.quantize_runs import with_weights
    from engine_support.tiny_models import load_reference, reference_logits
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    save_model(tmp_path / "whole", family, **SIZES)
    assert quantize(tmp_path / "whole", tmp_path / "small", *FORMS[form]) == 0
    plain = with_weights(tmp_path / "whole", tmp_path / "plain", stored_linears(tmp_path / "small"))
    # Left compressed, packed zero points have a shape that compressed-tensors 0.20 does not expect on empty modules.
    settings = {"quantization_config": CompressedTensorsConfig(dequantize=True)} if "zero points" in form else {}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "small", dtype=torch.float32, **settings).eval()
    tokens = list(range(3, 40))
    expected, found = reference_logits(load_reference(plain), tokens), reference_logits(model, tokens)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "int8": ("--quant_mode", "act_and_weight_quant"),
    "fp8": ("--quant_mode", "act_and_weight_quant", "--quant_dtype", "fp8"),
}


@pytest.mark.parametrize("form", ACTIVATIONS)
def test_it_reads_what_has_rounded_inputs(tmp_path: Path, form: str) -> None:
    """The numbers, and how inputs are rounded: its own model is near that of the numbers alone, and not the same."""
    from engine_support.quantize_runs import with_weights
    from engine_support.tiny_models import load_reference, reference_logits
    from transformers import AutoModelForCausalLM

    save_model(tmp_path / "whole", "llama", **SIZES)
    assert quantize(tmp_path / "whole", tmp_path / "small", *ACTIVATIONS[form]) == 0
    scheme, stored = scheme_of(tmp_path / "small"), tensors_of(tmp_path / "small")
    assert scheme.input_activations.dynamic
    numbers = stored_linears(tmp_path / "small")
    for module, weight in numbers.items():
        if module == "lm_head":
            continue
        own = {key.removeprefix(f"{module}."): value for key, value in stored.items() if key.startswith(f"{module}.")}
        assert torch.equal(compressor_of(scheme).decompress(own, scheme)["weight"].float(), weight), module
    plain = load_reference(with_weights(tmp_path / "whole", tmp_path / "plain", numbers))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "small", dtype=torch.float32).eval()
    tokens = list(range(3, 40))
    expected, found = reference_logits(plain, tokens), reference_logits(model, tokens)
    error = float((found - expected).norm() / expected.norm())
    assert 1e-4 < error < 0.1


@pytest.mark.parametrize("algorithm", ["gptq", "awq"])
def test_transformers_loads_calibrated_ones(tmp_path: Path, algorithm: str) -> None:
    from engine_support.calibrated import save_with_tokenizer, write_texts
    from engine_support.quantize_runs import BLOCKS, with_weights
    from engine_support.tiny_models import load_reference, reference_logits
    from transformers import AutoModelForCausalLM

    whole = save_with_tokenizer(tmp_path / "whole", "llama", torch.float32, **SIZES)
    texts = write_texts(tmp_path / "texts.jsonl")
    flags = (*BLOCKS, "--quant_algo", algorithm, "--calib_data_file", str(texts))
    assert quantize(whole, tmp_path / "small", *flags) == 0
    norms = {
        name.removesuffix(".weight"): tensor
        for name, tensor in tensors_of(tmp_path / "small").items()
        if name.endswith("norm.weight")
    }
    plain = with_weights(whole, tmp_path / "plain", {**norms, **stored_linears(tmp_path / "small")})
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "small", dtype=torch.float32).eval()
    tokens = list(range(3, 40))
    expected, found = reference_logits(load_reference(plain), tokens), reference_logits(model, tokens)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
