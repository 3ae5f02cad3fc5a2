"""Weights as compressed-tensors stores them, from its documentation: signed integers, packed without gaps or one a
byte, and 8-bit floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from engine_support.quantized_checkpoints import Quantize, Rounded, pack_down, round_weight
from torch import Tensor

from blade_llm.kernels.linear.float8 import Float8Weight

INT8_TOKENS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
INT8_STATIC = {**INT8_TOKENS, "strategy": "tensor", "dynamic": False}
FP8_TOKENS = {**INT8_TOKENS, "type": "float"}
FP8_STATIC = {**INT8_STATIC, "type": "float"}
FP8_GROUPS = {**FP8_TOKENS, "strategy": "group", "group_size": 32}


def compressed(
    weights: Mapping[str, Any], form: str, *, shuffled: bool = False, rounded: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], Quantize]:
    """``quantization_config`` and how weights are quantised, all but the head. ``weights``: as in a group of it;
    ``shuffled``: groups are not consecutive inputs; ``rounded``: how activations are, ``input_activations``."""

    def quantize(module: str, weight: Tensor) -> tuple[Mapping[str, Tensor], Tensor] | None:
        made = of_weight(module, weight)
        if made is None or rounded is None or rounded["dynamic"]:
            return made
        # One for all layers with the same inputs, with which some activations of these models are clipped.
        step = {"o_proj": 6, "down_proj": 7, "gate_proj": 8, "up_proj": 8}.get(module.rpartition(".")[2], 9)
        scale = step / (400 if rounded["type"] == "int" else 1500)
        return {**made[0], f"{module}.input_scale": torch.tensor([scale])}, made[1]

    def of_weight(module: str, weight: Tensor) -> tuple[Mapping[str, Tensor], Tensor] | None:
        if module == "lm_head":
            return None
        if weights.get("type") == "float":
            return _floats(module, weight, weights)
        size = weights.get("group_size") or weight.shape[1]
        symmetric = weights.get("symmetric", True)
        rounded = round_weight(weight, weights["num_bits"], size, symmetric=symmetric, shuffled=shuffled)
        if weights["strategy"] == "tensor":
            rounded = _of_whole(weight, rounded.bits, symmetric)
        return _integers(module, rounded, form, weights), rounded.weight()

    group = {"targets": ["Linear"], "weights": dict(weights), "input_activations": rounded}
    config = {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    return config, quantize


def _of_whole(weight: Tensor, bits: int, symmetric: bool) -> Rounded:
    """One scale and one zero point for all of the weight."""
    rounded = round_weight(weight.reshape(1, -1), bits, weight.numel(), symmetric=symmetric)
    rows = len(weight)
    return Rounded(
        bits,
        rounded.integers.view(weight.shape),
        rounded.scales.expand(rows, 1),
        rounded.zeros.expand(rows, 1),
        torch.zeros(weight.shape[1], dtype=torch.int64),
    )


def _integers(module: str, rounded: Rounded, form: str, weights: Mapping[str, Any]) -> dict[str, Tensor]:
    bits, middle = rounded.bits, 2 ** (rounded.bits - 1)
    whole = weights["strategy"] == "tensor"
    scales, zeros = (tensor[0] if whole else tensor for tensor in (rounded.scales, rounded.zeros))
    stored = {f"{module}.weight_scale": scales.contiguous()}
    if form == "pack-quantized":
        stored[f"{module}.weight_packed"] = _packed(rounded.integers, bits)
        stored[f"{module}.weight_shape"] = torch.tensor(rounded.integers.shape)
    else:
        stored[f"{module}.weight"] = (rounded.integers - middle).to(torch.int8)
    if not weights.get("symmetric", True):
        packed = form == "pack-quantized" and not whole
        stored[f"{module}.weight_zero_point"] = (
            _packed(zeros.t(), bits).t().contiguous() if packed else (zeros - middle).to(torch.int8).contiguous()
        )
    if not torch.equal(rounded.group_of, rounded.group_of.sort().values):
        stored[f"{module}.weight_g_idx"] = rounded.group_of.int()
    return stored


def _packed(integers: Tensor, bits: int) -> Tensor:
    """[rows, count] to [rows, words] int32."""
    count = integers.shape[1]
    padded = torch.nn.functional.pad(integers, (0, -count % 32))
    return pack_down(padded.t(), bits).t()[:, : -(-count * bits // 32)].contiguous()


def _floats(module: str, weight: Tensor, weights: Mapping[str, Any]) -> tuple[Mapping[str, Tensor], Tensor]:
    outputs, inputs = weight.shape
    block = {
        "tensor": (outputs, inputs),
        "channel": (1, inputs),
        "group": (1, weights.get("group_size")),
        "block": tuple(weights.get("block_structure", ())),
    }[weights["strategy"]]
    rows, columns = block
    scales = torch.empty(-(-outputs // rows), -(-inputs // columns), dtype=torch.bfloat16)
    values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            place = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
            scales[i, j] = weight[place].float().abs().max() / 448
            values[place] = (weight[place].float() / scales[i, j].float()).to(torch.float8_e4m3fn)
    numbers = Float8Weight(values, scales, (rows, columns)).dequantize()
    stored = scales.reshape(1) if weights["strategy"] == "tensor" else scales
    return {f"{module}.weight": values, f"{module}.weight_scale": stored}, numbers


W4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16}
W8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
F8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
FORMS = {
    "4 bits": compressed(W4, "pack-quantized"),
    "4 bits, zero points": compressed({**W4, "symmetric": False}, "pack-quantized"),
    "4 bits, act-order": compressed({**W4, "symmetric": False}, "pack-quantized", shuffled=True),
    "4 bits, channels": compressed({"num_bits": 4, "strategy": "channel"}, "pack-quantized"),
    "4 bits, one scale": compressed({"num_bits": 4, "strategy": "tensor", "symmetric": False}, "pack-quantized"),
    "3 bits": compressed({**W4, "num_bits": 3, "symmetric": False}, "pack-quantized"),
    "8 bits, packed": compressed({**W4, "num_bits": 8}, "pack-quantized"),
    "8 bits": compressed(W8, "int-quantized"),
    "8 bits, zero points": compressed({**W8, "symmetric": False}, "int-quantized"),
    "8 bits, one scale": compressed({**W8, "strategy": "tensor", "symmetric": False}, "naive-quantized"),
    "8 bits, groups": compressed({**W4, "num_bits": 8}, "naive-quantized"),
    "fp8": compressed(F8, "float-quantized"),
    "fp8, one scale": compressed({**F8, "strategy": "tensor"}, "naive-quantized"),
    "fp8, groups": compressed({**F8, "strategy": "group", "group_size": 16}, "float-quantized"),
    "fp8, blocks": compressed({**F8, "strategy": "block", "block_structure": [32, 16]}, "float-quantized"),
}
