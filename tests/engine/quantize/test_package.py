"""The package ``compressed-tensors`` makes the same bytes of the same weights, and reads ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.quantize_runs import FORMS, SIZES, quantize, stored_linears, tensors_of
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
