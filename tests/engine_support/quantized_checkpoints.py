"""Tiny checkpoints with quantised weights, packed bit by bit as the formats' own documentation says, and the model of
the numbers that they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from engine_support.rounded_activations import round_inputs_of
from engine_support.tiny_models import load_reference, save_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from blade_llm.models.implementation import read_model_config
from blade_llm.models.parameters import Parameters
from blade_llm.weights.sources import SafetensorsWeights

SIZES: dict[str, Any] = {"intermediate_size": 96, "vocab_size": 224, "num_key_value_heads": 4}
"""Of all models, so that three bits fill whole words."""


@dataclass(frozen=True)
class Rounded:
    """A weight rounded to integers, group by group of inputs."""

    bits: int
    integers: Tensor
    """[out, in] int64, 0 to ``2**bits - 1``."""
    scales: Tensor
    """[out, groups] fp16."""
    zeros: Tensor
    """[out, groups] int64."""
    group_of: Tensor
    """[in] int64: the group of each input."""

    def weight(self) -> Tensor:
        """fp32 [out, in]."""
        return (self.integers - self.zeros[:, self.group_of]).float() * self.scales.float()[:, self.group_of]


def round_weight(
    weight: Tensor, bits: int, group_size: int, *, symmetric: bool, shuffled: bool = False, seed: int = 0
) -> Rounded:
    """Round ``weight`` ([out, in]) to the nearest; ``shuffled``: groups are not consecutive inputs."""
    inputs, most = weight.shape[1], 2**bits - 1
    group_of = torch.arange(inputs) // group_size
    if shuffled:
        group_of = group_of[torch.randperm(inputs, generator=torch.Generator().manual_seed(seed))]
    groups = int(group_of.max()) + 1
    lowest, highest = torch.zeros(len(weight), groups), torch.zeros(len(weight), groups)
    for group in range(groups):
        some = weight[:, group_of == group].float()
        lowest[:, group], highest[:, group] = some.amin(1).clamp(max=0), some.amax(1).clamp(min=0)
    if symmetric:
        scales = (torch.maximum(-lowest, highest) * 2 / most).half()
        zeros = torch.full(scales.shape, 2 ** (bits - 1))
    else:
        scales = ((highest - lowest) / most).half()
        zeros = (-lowest / scales.float()).round().long().clamp(1, most)
    integers = (weight.float() / scales.float()[:, group_of]).round().long() + zeros[:, group_of]
    return Rounded(bits, integers.clamp(0, most), scales, zeros, group_of)


def pack_bits(integers: list[int], bits: int) -> list[int]:
    """32-bit words of integers that follow each other without gaps, lowest bits first."""
    stream = sum(integer << bits * place for place, integer in enumerate(integers))
    assert len(integers) * bits % 32 == 0
    words = [stream >> shift & 0xFFFFFFFF for shift in range(0, len(integers) * bits, 32)]
    return [word - (1 << 32) if word >> 31 else word for word in words]


def pack_down(integers: Tensor, bits: int) -> Tensor:
    """[count, columns] to [words, columns] int32: each column on its own."""
    columns = [pack_bits(column.tolist(), bits) for column in integers.t()]
    return torch.tensor(columns, dtype=torch.int32).t().contiguous()


def gptq_tensors(module: str, rounded: Rounded, *, version: int = 1, groups: bool = True) -> dict[str, Tensor]:
    """As AutoGPTQ (version 1) and GPTQModel (2) write it."""
    stored = (rounded.zeros - (1 if version == 1 else 0)) % 2**rounded.bits
    tensors = {
        f"{module}.qweight": pack_down(rounded.integers.t(), rounded.bits),
        f"{module}.qzeros": pack_down(stored, rounded.bits).t().contiguous(),
        f"{module}.scales": rounded.scales.t().contiguous(),
    }
    return tensors | ({f"{module}.g_idx": rounded.group_of.int()} if groups else {})


Quantize = Callable[[str, Tensor], tuple[Mapping[str, Tensor], Tensor] | None]
"""Of a module and its weight: the tensors in its place and the weight that they stand for; None: it stays."""


def save_quantized(folder: Path, family: str, config: Mapping[str, Any], quantize: Quantize, **overrides: Any) -> Any:
    """Save a random model as :func:`quantize_folder` does, from one in ``folder / "plain"``, which is then of the
    numbers that are stored; transformers' own model of these, in fp32, rounding activations as ``config`` says."""
    save_model(folder / "plain", family, torch.float16, **overrides)
    quantize_folder(folder / "plain", folder, config, quantize)
    return load_rounding_reference(folder)


def load_rounding_reference(folder: Path) -> Any:
    """The model in ``folder / "plain"``, whose layers round their inputs where those in ``folder`` are said to."""
    reference = load_reference(folder / "plain")
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    round_inputs_of(reference, config, load_file(folder / "model.safetensors"))
    return reference


def quantize_folder(plain: Path, folder: Path, config: Mapping[str, Any], quantize: Quantize) -> None:
    """Write ``folder``: the model in ``plain`` whose linear layers went through ``quantize``, but for routers and what
    is before a head for multi-token prediction; in ``plain`` they become fp32, of the numbers that are stored.

    ``config``: the ``quantization_config``.
    """
    tensors = load_file(plain / "model.safetensors")
    stored: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        module = key.removesuffix(".weight")
        others = ("embed_tokens.weight", "gate.weight", "eh_proj.weight", "mtp.fc.weight")
        linear = key.endswith(".weight") and tensor.dim() == 2 and not key.endswith(others)
        made = quantize(module, tensor) if linear else None
        if made is None:
            stored[key] = tensor
        else:
            stored |= made[0]
            tensors[key] = made[1]
    values = {key: tensor.float() for key, tensor in tensors.items()}
    save_file(values, plain / "model.safetensors", {"format": "pt"})
    fields = json.loads((plain / "config.json").read_text())
    folder.mkdir(exist_ok=True)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**fields, "quantization_config": dict(config)}))


def edited(folder: Path, **changes: Tensor | None) -> None:
    """Replace tensors of the first layer's down projection in ``folder``; None deletes."""
    file, prefix = folder / "model.safetensors", "model.layers.0.mlp.down_proj."
    tensors = load_file(file)
    for name, value in changes.items():
        assert prefix + name in tensors
        if value is None:
            del tensors[prefix + name]
        else:
            tensors[prefix + name] = value
    save_file(tensors, file)


def read_linears(folder: Path) -> dict[str, torch.Tensor]:
    """fp32 weights of all linear layers, dequantised."""
    config = read_model_config(folder)
    source = SafetensorsWeights(folder, config, torch.device("cpu"), torch.float32)
    parameters = Parameters(source, config.tensors.found_in(source.names))
    return {
        part.module: parameters.read((part.weight,))
        for linear in parameters.map.linears.values()
        for part in linear.parts
    }


def gptq(
    bits: int,
    group_size: int,
    *,
    symmetric: bool = True,
    act_order: bool = False,
    version: int = 1,
    groups: bool = True,
    head: bool = False,
    seed: int = 0,
) -> tuple[dict[str, Any], Quantize]:
    """``quantization_config`` and how weights are quantised; ``groups``: with ``g_idx``."""

    def quantize(module: str, weight: Tensor) -> tuple[Mapping[str, Tensor], Tensor] | None:
        if module == "lm_head" and not head:
            return None
        size = weight.shape[1] if group_size == -1 else group_size
        rounded = round_weight(weight, bits, size, symmetric=symmetric, shuffled=act_order, seed=seed)
        return gptq_tensors(module, rounded, version=version, groups=groups), rounded.weight()

    config: dict[str, Any] = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group_size,
        "desc_act": act_order,
        "sym": symmetric,
        "lm_head": head,
    }
    return config | ({"checkpoint_format": "gptq_v2"} if version == 2 else {}), quantize


def awq(group_size: int) -> tuple[dict[str, Any], Quantize]:
    """As :func:`gptq`, as AutoAWQ writes it."""

    def words(integers: Tensor) -> Tensor:
        """[rows, out] to [rows, out / 8]: of eight outputs, first those of even places."""
        eights = integers.unflatten(1, (-1, 8))[:, :, [0, 2, 4, 6, 1, 3, 5, 7]]
        return pack_down(eights.flatten(1).t(), 4).t().contiguous()

    def quantize(module: str, weight: Tensor) -> tuple[Mapping[str, Tensor], Tensor] | None:
        if module == "lm_head":
            return None
        rounded = round_weight(weight, 4, weight.shape[1] if group_size == -1 else group_size, symmetric=False)
        stored = {
            f"{module}.qweight": words(rounded.integers.t()),
            f"{module}.qzeros": words(rounded.zeros.t()),
            f"{module}.scales": rounded.scales.t().contiguous(),
        }
        return stored, rounded.weight()

    return {"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True, "version": "gemm"}, quantize


def float8(
    block: tuple[int, int] | None, *, scale_dtype: torch.dtype = torch.float32
) -> tuple[dict[str, Any], Quantize]:
    """As :func:`gptq`, as DeepSeek and Qwen write it (``block``), or with one scale a weight."""

    def quantize(module: str, weight: Tensor) -> tuple[Mapping[str, Tensor], Tensor] | None:
        if module == "lm_head":
            return None
        rows, columns = block or weight.shape
        scales = torch.empty(-(-weight.shape[0] // rows), -(-weight.shape[1] // columns), dtype=scale_dtype)
        values, numbers = torch.empty(weight.shape, dtype=torch.float8_e4m3fn), torch.empty(weight.shape)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                place = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
                scales[i, j] = weight[place].float().abs().max() / 448
                values[place] = (weight[place].float() / scales[i, j].float()).to(torch.float8_e4m3fn)
                numbers[place] = values[place].float() * scales[i, j].float()
        name = "weight_scale" if block is None else "weight_scale_inv"
        scale = scales[0, 0] if block is None else scales
        return {f"{module}.weight": values, f"{module}.{name}": scale.clone()}, numbers

    config: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    return config | ({} if block is None else {"weight_block_size": list(block)}), quantize
