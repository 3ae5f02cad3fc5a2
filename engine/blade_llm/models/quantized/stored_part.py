"""Some outputs and inputs of one quantised weight, as the checkpoint's tensors have them: no more is read."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from blade_llm.models.quantized.bits import unpack_rows
from blade_llm.models.weight_source import WeightSource
from blade_llm.spec.slices import WORD_BITS, StoredTensor
from blade_llm.spec.tensors import TensorPart


class StoredPart:
    """Reads what the tensors in place of a weight have for contiguous outputs and inputs."""

    __slots__ = ("_source", "_tensors", "inputs", "module", "outputs", "whole_inputs", "whole_outputs")

    def __init__(self, source: WeightSource, part: TensorPart, outputs: range, inputs: range) -> None:
        """``part``: of which weight; its own rows and columns do not matter."""
        self._source = source
        self._tensors: dict[str, StoredTensor] = {each.name: each for each in part.stored()}
        self.module = part.module
        self.outputs, self.inputs = outputs, inputs
        self.whole_outputs, self.whole_inputs = part.shape

    def name(self, suffix: str) -> str:
        """Of the tensor of the module."""
        return f"{self.module}.{suffix}"

    def read(self, suffix: str) -> Tensor:
        """The block of the tensor that stands for the part: good until the next call."""
        name = self.name(suffix)
        block = self._tensors[name].block(self.outputs, self.inputs)
        return self._source.stored(name) if block is None else self._source.stored(name, block)

    def unpack(
        self, suffix: str, words: Tensor, bits: int, *, of_inputs: bool, unpacked: Callable[..., Tensor] = unpack_rows
    ) -> Tensor:
        """The integers of the part's inputs, or outputs, [count, columns] uint8, out of ``words`` ([rows, columns]
        int32), which :meth:`read` gave, turned where it has them in its rows."""
        stored = self._tensors[self.name(suffix)]
        run = self.inputs if of_inputs else self.outputs
        axis = next((each for each in stored.axes if each is not None and each.inputs == of_inputs), None)
        first = 0 if axis is None else axis.first(run)
        whole = self.whole_inputs if of_inputs else self.whole_outputs
        # A whole word more than there would be without gaps.
        spaced = WORD_BITS % bits != 0 and axis is None and len(words) * WORD_BITS >= whole * bits + WORD_BITS
        return unpacked(words, bits, spaced=spaced)[run.start - first : run.stop - first]
