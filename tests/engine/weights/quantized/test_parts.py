"""Parts of quantised weights, read of the tensors' own parts: the same numbers as of the whole weight."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_support.compressed_tensors import FORMS as COMPRESSED
from engine_support.quantized_checkpoints import Quantize, awq, float8, gptq
from torch import Tensor

from blade_llm.models.errors import ModelFilesError
from blade_llm.models.quantized.config import read_forms
from blade_llm.models.quantized.reading import read_quantized
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.slices import Slice
from blade_llm.spec.tensors import TensorPart

OUTPUTS, INPUTS = 96, 128
FORMS: dict[str, tuple[dict[str, Any], Quantize]] = {
    "gptq": gptq(4, 32, symmetric=False),
    "gptq without g_idx": gptq(4, 32, symmetric=False, groups=False),
    "gptq, rows": gptq(8, -1),
    "gptq, 3 bits": gptq(3, 32, symmetric=False, version=2),
    "gptq, 2 bits, act-order": gptq(2, 16, symmetric=False, act_order=True),
    "gptq, act-order": gptq(4, 64, act_order=True),
    "awq": awq(32),
    "awq, rows": awq(-1),
    "fp8 blocks": float8((32, 64)),
    "fp8 whole": float8(None),
    **COMPRESSED,
}
ROWS = [None, range(96), range(32, 64), range(5, 37), (*range(8, 24), *range(40, 56)), (7, 3, 4, 90, 8)]
COLUMNS = [None, range(64), range(32, 128), range(40, 72), range(7, 19), range(101, 128)]


class Source:
    """Gives only the blocks that a part is said to need."""

    def __init__(self, tensors: dict[str, Tensor], part: TensorPart) -> None:
        self._tensors, self._blocks = tensors, list(part.blocks())
        self.read: set[tuple[str, Slice | None]] = set()

    def stored(self, name: str, block: Slice | None = None) -> Tensor:
        assert (name, block) in self._blocks
        self.read.add((name, block))
        tensor = self._tensors[name]
        for dim, wanted in enumerate(() if block is None else (block.rows, block.columns)):
            if wanted is not None:
                tensor = tensor.narrow(dim, wanted.start, len(wanted))
        return tensor.contiguous()

    def everything_was_read(self) -> bool:
        """But for groups where there is one alone."""
        single = all(tensor.shape[0] == 1 for name, tensor in self._tensors.items() if name.endswith(".scales"))
        return all(block in self.read or (single and block[0].endswith(".g_idx")) for block in self._blocks)


def stored_weight(name: str) -> tuple[dict[str, Tensor], Tensor, TensorPart]:
    """Tensors of one layer, its weight, and where it is."""
    fields, quantize = FORMS[name]
    weight = torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(1)) * 0.05
    made = quantize("model.layers.0.mlp.up_proj", weight.half())
    forms = read_forms(RawConfig({"quantization_config": fields}))
    assert made is not None
    assert forms is not None
    tensors, numbers = dict(made[0]), made[1]
    form = forms.linear("model.layers.0.mlp.up_proj")
    assert form is not None
    form = form.found_in("model.layers.0.mlp.up_proj", tensors)
    return tensors, numbers, TensorPart("model.layers.0.mlp.up_proj.weight", (OUTPUTS, INPUTS), form=form)


@pytest.mark.parametrize("name", FORMS)
def test_a_part_is_that_of_the_whole(name: str) -> None:
    tensors, numbers, whole = stored_weight(name)
    for rows in ROWS:
        for columns in COLUMNS:
            part = TensorPart(whole.name, whole.shape, rows, columns=columns, form=whole.form)
            source = Source(tensors, part)
            found = read_quantized(source, part)  # type: ignore[arg-type]
            some = numbers if rows is None else numbers[list(rows)]
            wanted = some if columns is None else some[:, columns.start : columns.stop]
            assert torch.equal(found.dequantize(), wanted), (rows, columns)
            assert source.everything_was_read()


@pytest.mark.parametrize(
    ("name", "suffix", "block"),
    [
        ("gptq", "qweight", Slice(None, range(4, 8), range(32, 64))),
        ("gptq", "scales", Slice(None, None, range(32, 64))),  # g_idx may say anything
        ("gptq without g_idx", "scales", Slice(None, range(1, 2), range(32, 64))),
        ("gptq without g_idx", "qzeros", Slice(None, range(1, 2), range(4, 8))),
        ("gptq, act-order", "g_idx", Slice(None, range(32, 64))),
        ("awq", "qweight", Slice(None, range(32, 64), range(4, 8))),
        ("4 bits", "weight_packed", Slice(None, range(32, 64), range(4, 8))),
        ("4 bits", "weight_scale", Slice(None, range(32, 64), range(2, 4))),
        ("4 bits, zero points", "weight_zero_point", Slice(None, range(4, 8), range(2, 4))),
        ("3 bits", "weight_packed", Slice(None, range(32, 64))),
        ("fp8 blocks", "weight", Slice(None, range(32, 64), range(32, 64))),
        ("fp8 blocks", "weight_scale_inv", Slice(None, range(1, 2), range(1))),
        ("fp8 whole", "weight_scale", None),
    ],
)
def test_what_is_read(name: str, suffix: str, block: Slice | None) -> None:
    """Of outputs and inputs from 32 to 64."""
    _, _, whole = stored_weight(name)
    part = TensorPart(whole.name, whole.shape, range(32, 64), columns=range(32, 64), form=whole.form)
    assert dict(part.blocks())[f"{part.module}.{suffix}"] == block


@pytest.mark.parametrize("columns", [None, range(64)])
@pytest.mark.parametrize("group", [0, 2, -1])
def test_groups_that_are_none(columns: range | None, group: int) -> None:
    """There are two of 64 inputs."""
    tensors, _, whole = stored_weight("gptq, act-order")
    tensors["model.layers.0.mlp.up_proj.g_idx"] = torch.full((INPUTS,), group, dtype=torch.int32)
    tensors["model.layers.0.mlp.up_proj.g_idx"][0] = 0
    part = TensorPart(whole.name, whole.shape, columns=columns, form=whole.form)
    if group == 0 and columns is not None:
        assert read_quantized(Source(tensors, part), part).inputs == 64  # type: ignore[arg-type]
        return
    with pytest.raises(ModelFilesError, match="g_idx does not divide 128 inputs into groups of 64"):
        read_quantized(Source(tensors, part), part)  # type: ignore[arg-type]
