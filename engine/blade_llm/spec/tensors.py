"""Where the tensors of a model are in its checkpoint: by name, with what has to be done to them.

``blade_llm_check`` judges a folder by the same map that the loader reads, without torch.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from blade_llm.spec.quantization.stored_tensors import StoredTensor
from blade_llm.spec.quantization.weights import WeightForm
from blade_llm.spec.slices import Slice, contiguous_runs

EMBEDDING: Final = "embedding"
"""The place of the embedding table, which stays quantised where a checkpoint has it so: other tensors become floats."""


@dataclass(frozen=True, slots=True)
class TensorPart:
    """One tensor of a checkpoint, or some of its rows and columns."""

    name: str
    shape: tuple[int, ...]
    """As it is in the checkpoint."""
    rows: Sequence[int] | None = None
    """Which rows are wanted, in order (counted after ``transposed``); None for all as they are. A range is cheap, any
    other sequence is a copy."""
    transposed: bool = False
    """The checkpoint has [in, out] instead of [out, in]."""
    unit_rows: bool = False
    """Each row is divided by its Euclidean norm."""
    index: int | None = None
    """Which of the matrices that lie one after the other in the tensor, along a dimension before those above."""
    float32: bool = False
    """Read in fp32 whatever the model's type."""
    integers: bool = False
    """No weights, but indices: int64."""
    columns: range | None = None
    """Which columns are wanted (counted after ``transposed``), contiguous; None for all."""
    form: WeightForm | None = None
    """How the checkpoint has it where it is a quantised weight, ``module.weight`` by name; None: as it is."""

    @property
    def plain(self) -> bool:
        """Whether the tensor is wanted as it is in the checkpoint."""
        changed = self.transposed or self.unit_rows or self.float32 or self.form is not None
        return self.rows is None and self.columns is None and self.index is None and not changed

    @property
    def key(self) -> str:
        """Names what is wanted of the tensor: other than its name where it is not plain."""
        if self.plain:
            return self.name
        few = self.rows is None or isinstance(self.rows, range)
        rows = str(self.rows) if few else hashlib.sha256(array("q", self.rows or ())).hexdigest()
        form = "" if self.form is None else f" {self.form}"
        return f"{self.name} {self.index} {rows} {self.columns} {self.transposed} {self.unit_rows} {self.float32}{form}"

    @property
    def module(self) -> str:
        """The layer whose weight this is."""
        return self.name.removesuffix(".weight")

    def stored(self) -> Iterator[StoredTensor]:
        """What the checkpoint must have for it."""
        if self.form is not None:
            yield from self.form.stored(self.module, *self.shape)
        else:
            yield StoredTensor(self.name, self.shape, ("I64",) if self.integers else ())

    def blocks(self) -> Iterator[tuple[str, Slice | None]]:
        """What is read of the checkpoint's tensors for it, by name; None for the whole tensor."""
        runs: tuple[range | None, ...] = (None,) if self.rows is None else contiguous_runs(self.rows)[0]
        if self.form is None:
            for run in runs:
                yield self.name, self.block(run)
            return
        outputs, inputs = self.shape
        for tensor in self.stored():
            for run in runs:
                yield tensor.name, tensor.block(run or range(outputs), self.columns or range(inputs))

    @property
    def wanted_shape(self) -> tuple[int, ...]:
        """Of what is wanted, turned as ``transposed`` says."""
        shape = self.shape if self.index is None else self.shape[1:]
        if self.transposed:
            shape = shape[::-1]
        if self.rows is not None:
            shape = (len(self.rows), *shape[1:])
        return shape if self.columns is None else (shape[0], len(self.columns), *shape[2:])

    @property
    def size(self) -> int:
        """Elements that are wanted."""
        return math.prod(self.wanted_shape)

    def block(self, rows: range | None) -> Slice | None:
        """Where the checkpoint has the wanted columns of ``rows`` (counted after ``transposed``; None for all); None
        for the whole tensor."""
        shape = self.shape if self.index is None else self.shape[1:]
        first, second = (self.columns, rows) if self.transposed else (rows, self.columns)
        if first is not None and first == range(shape[0]):
            first = None
        if second is not None and second == range(shape[1]):
            second = None
        whole = self.index is None and first is None and second is None
        return None if whole else Slice(self.index, first, second)


@dataclass(frozen=True, slots=True)
class QuantizedPart:
    """A quantised tensor that is no linear layer of its own."""

    part: TensorPart
    form: WeightForm

    @property
    def nbytes(self) -> int:
        """Estimate of what it takes in memory."""
        rows, columns = self.part.wanted_shape
        return self.form.packed_bytes(rows, columns, self.part.shape[1])

    @property
    def linear(self) -> LinearMap:
        """The linear layer with it as its weight."""
        part, (rows, columns) = self.part, self.part.shape
        return LinearMap((LinearPart(part.module, rows, columns, part.rows, form=self.form),))


@dataclass(frozen=True, slots=True)
class LinearPart:
    """A linear layer as the checkpoint has it, or some of its outputs, or of its inputs."""

    module: str
    """Its tensors are ``module.weight``, ``module.bias`` and whatever a quantised form adds."""
    outputs: int
    inputs: int
    rows: Sequence[int] | None = None
    """As in :class:`TensorPart`."""
    transposed: bool = False
    unit_rows: bool = False
    one_of: tuple[int, int] | None = None
    """Which of how many layers, where one tensor named ``module`` holds the weights of all."""
    columns: range | None = None
    """Which inputs are wanted, as in :class:`TensorPart`; of the bias nothing is left out for them."""
    form: WeightForm | None = None
    """As in :class:`TensorPart`."""

    @property
    def weight(self) -> TensorPart:
        """The weight."""
        shape: tuple[int, ...] = (self.inputs, self.outputs) if self.transposed else (self.outputs, self.inputs)
        index: int | None = None
        name = f"{self.module}.weight"
        if self.one_of is not None:
            index, count = self.one_of
            name, shape = self.module, (count, *shape)
        return TensorPart(
            name, shape, self.rows, self.transposed, self.unit_rows, index, columns=self.columns, form=self.form
        )

    @property
    def bias(self) -> TensorPart:
        """The plain bias."""
        return TensorPart(f"{self.module}.bias", (self.outputs,), self.rows)

    @property
    def wanted(self) -> int:
        """The outputs that are wanted."""
        return self.outputs if self.rows is None else len(self.rows)

    @property
    def wanted_inputs(self) -> int:
        """The inputs that are wanted."""
        return self.inputs if self.columns is None else len(self.columns)


@dataclass(frozen=True, slots=True)
class LinearMap:
    """One linear layer of the model: parts of the checkpoint's, one under the other."""

    parts: tuple[LinearPart, ...]
    bias: bool = False

    @property
    def weights(self) -> tuple[TensorPart, ...]:
        """The weights of all parts."""
        return tuple(part.weight for part in self.parts)

    @property
    def biases(self) -> tuple[TensorPart, ...]:
        """The plain biases of all parts; none without bias."""
        return tuple(part.bias for part in self.parts) if self.bias else ()

    @property
    def quantized(self) -> bool:
        """Whether the checkpoint has any part in another form than the plain one."""
        return any(part.form is not None for part in self.parts)

    @property
    def size(self) -> int:
        """Elements of the weight."""
        return sum(part.wanted * part.wanted_inputs for part in self.parts)

    def tensors(self) -> Iterator[TensorPart]:
        """What the checkpoint must have."""
        yield from self.weights
        yield from self.biases


@dataclass(frozen=True, slots=True)
class Variant:
    """Some places of a map as other checkpoints of the same model have them."""

    names: tuple[str, ...]
    """Tensors that such a checkpoint has, one of them or all, and no other."""
    make: Callable[[], TensorMap]


@dataclass(frozen=True, slots=True)
class TensorMap:
    """All tensors of a model, by their place in it, such as ``layers.3.attention.qkv``."""

    linears: Mapping[str, LinearMap] = field(default_factory=dict)
    tensors: Mapping[str, TensorPart] = field(default_factory=dict)
    """All others: norms, tables."""
    optional_prefix: str = ""
    """Of most names. A checkpoint that was saved without the output matrix's module has none of them with it."""
    skipped: tuple[str, ...] = ()
    """What names of tensors begin with that are known and no part of the model: layers for multi-token prediction."""
    variant: Variant | None = field(default=None, compare=False)
    partial: bool = False
    """The checkpoint has more than this, for others."""
    vision: tuple[str, ...] = ()
    """What names of tensors begin with that are a vision tower's."""

    def found_in(self, names: Collection[str]) -> TensorMap:
        """The map for a checkpoint with tensors of these ``names``: with the variant's places if it has one of its
        tensors, without the optional prefix if none has it, with plain weights where it has those."""
        prefix = self.optional_prefix
        if self.variant is not None:
            other = TensorMap()
            if any(name in names or name.removeprefix(prefix) in names for name in self.variant.names):
                other = self.variant.make()
            linears, tensors = {**self.linears, **other.linears}, {**self.tensors, **other.tensors}
            return replace(self, linears=linears, tensors=tensors, variant=None).found_in(names)
        if not prefix or any(name.startswith(prefix) for name in names):
            return self._with_forms_of(names)
        linears = {
            place: replace(
                linear, parts=tuple(replace(part, module=part.module.removeprefix(prefix)) for part in linear.parts)
            )
            for place, linear in self.linears.items()
        }
        tensors = {place: replace(part, name=part.name.removeprefix(prefix)) for place, part in self.tensors.items()}
        skipped = tuple(name.removeprefix(prefix) for name in self.skipped)
        found = replace(self, linears=linears, tensors=tensors, optional_prefix="", skipped=skipped)
        return found._with_forms_of(names)

    def _with_forms_of(self, names: Collection[str]) -> TensorMap:
        """The map with each quantised weight in the form that it has in a checkpoint with tensors of these names."""
        if not self.quantized:
            return self

        def part_of(part: LinearPart) -> LinearPart:
            return part if part.form is None else replace(part, form=part.form.found_in(part.module, names))

        def tensor_of(part: TensorPart) -> TensorPart:
            return part if part.form is None else replace(part, form=part.form.found_in(part.module, names))

        linears = {
            place: replace(linear, parts=tuple(part_of(part) for part in linear.parts))
            for place, linear in self.linears.items()
        }
        return replace(self, linears=linears, tensors={place: tensor_of(part) for place, part in self.tensors.items()})

    @property
    def quantized(self) -> bool:
        """Whether the checkpoint has any weight in another form than the plain one."""
        return any(part.form is not None for part in self.parts())

    def parts(self) -> Iterator[TensorPart]:
        """All that is wanted of the checkpoint."""
        yield from self.tensors.values()
        for linear in self.linears.values():
            yield from linear.tensors()

    def expected(self) -> dict[str, tuple[int, ...]]:
        """Names and whole shapes of the checkpoint's tensors that the model needs something of."""
        return {tensor.name: tensor.shape for tensor in self.stored()}

    def stored(self) -> Iterator[StoredTensor]:
        """What the checkpoint must have."""
        for part in self.parts():
            yield from part.stored()

    @property
    def types(self) -> dict[str, tuple[str, ...]]:
        """Names of tensors that are no plain weights, with the types that they may have."""
        return {tensor.name: tensor.types for tensor in self.stored() if tensor.types}

    @property
    def older_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names of tensors that earlier versions of their format have in another shape, and that."""
        return {tensor.name: tensor.older for tensor in self.stored() if tensor.older is not None}

    @property
    def linear_size(self) -> int:
        """Elements of all linear layers' weights that are kept as floats."""
        return sum(part.wanted * part.wanted_inputs for part in self.linear_parts() if part.form is None)

    @property
    def quantized_bytes(self) -> int:
        """Estimate of the bytes that the weights take which are kept quantised as the checkpoint has them."""
        return sum(
            part.form.packed_bytes(part.wanted, part.wanted_inputs, part.inputs)
            for part in self.linear_parts()
            if part.form is not None
        ) + (0 if self.table is None else self.table.nbytes)

    @property
    def table(self) -> QuantizedPart | None:
        """The embedding table, where it is quantised."""
        part = self.tensors.get(EMBEDDING)
        return None if part is None or part.form is None else QuantizedPart(part, part.form)

    def quantized_experts(self) -> Iterator[LinearPart]:
        """The quantised parts of routed experts' layers."""
        for place, linear in self.linears.items():
            if ".experts." in place:
                yield from (part for part in linear.parts if part.form is not None)

    def quantized_sizes(self) -> Iterator[tuple[int, int]]:
        """Outputs and inputs of the linear layers that have any weight which is kept quantised."""
        for linear in self.linears.values():
            if linear.quantized:
                yield sum(part.wanted for part in linear.parts), linear.parts[0].wanted_inputs

    def linear_parts(self) -> Iterator[LinearPart]:
        """The parts of all linear layers."""
        for linear in self.linears.values():
            yield from linear.parts

    @property
    def other_size(self) -> int:
        """Elements of everything else that is kept as floats."""
        biases = sum(part.wanted for linear in self.linears.values() if linear.bias for part in linear.parts)
        table = 0 if self.table is None else self.table.part.size
        return biases + sum(part.size for part in self.tensors.values()) - table
