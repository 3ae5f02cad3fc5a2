"""WeightSource by their Hugging Face names, from files or random, on the device and in the type they compute in.

Files are memory-mapped: on CPU a large tensor whose type already fits is not copied, and replicas share its pages. Of a
block of a tensor, as a rank of several reads it, no page but its own is touched. The pages of what was read are given
back while loading goes on, so that a weight that is packed anew is not held twice.
"""

from __future__ import annotations

import logging
import math
import pickle
import zlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from blade_llm.kernels.linear.packed import PackedLinear
from blade_llm.kernels.native.memory import huge_pages
from blade_llm.models.errors import ModelFilesError, UnsupportedModelError
from blade_llm.models.tensors import Wanted, expected_tensors
from blade_llm.spec.shard import Shard
from blade_llm.spec.slices import Slice
from blade_llm.weights.checkpoint import check_weights, open_rank, unused_tensors
from blade_llm.weights.gguf.index import GgufFile
from blade_llm.weights.mapped_pages import MappedPages

logger = logging.getLogger(__name__)

_FILE_DTYPES: Final = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
SMALL_BYTES: Final = 1 << 20
"""Tensors below are copied: reading them should never wait for the disk."""
_TOGETHER: Final = 8
"""Most tensors that are expected to become one."""
NOISE_LENGTH: Final = 4_194_319
"""Random numbers that dummy weights are cut from. A prime, so that no two rows of a matrix are equal."""


class SafetensorsWeights:
    """The weights of a model folder."""

    def __init__(self, model_dir: Path, config: Wanted, device: torch.device, dtype: torch.dtype) -> None:
        """Of a folder split for tensor parallelism the part of the rank that ``config`` is for is read.

        Raises :class:`ModelFilesError` when files or tensors are missing, truncated or of the wrong shape.
        """
        self._pages = MappedPages()
        self._kept: list[tuple[Path, Tensor]] = []
        self._checkpoint = open_rank(model_dir, config.shard or Shard(0, 1))
        expected = expected_tensors(config, self.names)
        if problems := check_weights(self._checkpoint, config):
            raise ModelFilesError(f"{model_dir}: {'; '.join(problems)}")
        unused = unused_tensors(self._checkpoint, expected, config.tensors.skipped, config.tensors.vision)
        if unused and not config.tensors.partial:
            logger.warning("%s: %s", model_dir, unused)
        self._sizes = [part.size for part in config.tensors.found_in(self.names).parts()]
        self._device = device
        self._dtype = dtype
        self._open: dict[Path, Callable[[str, Slice | None], Tensor]] = {}
        self._check_values = True

    def __del__(self) -> None:
        """The model is complete: a tensor that it took as it was, to pack it or not, need not stay in memory."""
        for file, tensor in self._kept:
            self._pages.note(file, tensor.data_ptr(), tensor.nbytes)
        self._pages.release()

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def names(self) -> Collection[str]:
        """Of all tensors, also of those that a split folder has for other ranks."""
        return self._checkpoint.names

    def tensor(self, name: str, block: Slice | None = None, dtype: torch.dtype | None = None) -> Tensor:
        for file, recent in self._kept[-_TOGETHER:-1]:  # read again when the last of them was there
            self._pages.note(file, recent.data_ptr(), recent.nbytes)
        self._pages.release()
        block = self._checkpoint.stored_block(name, block)
        mapped = self._mapped(name, block)
        tensor = mapped.to(dtype or self._dtype)
        if self._device.type == "cpu" and tensor is mapped:
            if tensor.nbytes < SMALL_BYTES:
                return tensor.clone()
            if self.is_mapped((name,)) and (block is None or block.columns is None):
                # No other tensor that was handed out may be kept here: it would look as if the model needed it.
                kept = tensor if block is None else tensor.detach()
                self._kept.append((self._checkpoint.tensors[name].file, kept))
        return tensor

    def stored(self, name: str, block: Slice | None = None) -> Tensor:
        self._pages.release()
        return self._mapped(name, self._checkpoint.stored_block(name, block))

    def stacked(self, names: list[str]) -> Tensor:
        if len(names) == 1:
            return self.tensor(names[0])
        parts = [self._mapped(name, self._checkpoint.stored_block(name)).to(self._dtype) for name in names]
        shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
        whole = parts[0].new_empty(shape) if self._device.type != "cpu" else _temporary(shape, self._dtype)
        torch.cat(parts, out=whole)
        self._pages.release()
        return whole

    def made(self, keys: list[str], make: Callable[[], Tensor]) -> Tensor:
        return make()

    def packed(self, keys: list[str], make: Callable[[], PackedLinear]) -> PackedLinear:
        return make()

    def parts(self, names: Sequence[str]) -> list[Tensor]:
        """The tensors as they are in their files where the type allows it: good until the next call."""
        self._pages.release()
        return [self._mapped(name, self._checkpoint.stored_block(name)).to(self._dtype) for name in names]

    def stacked_shape(self, names: Sequence[str]) -> tuple[int, ...]:
        """The shape of what :meth:`stacked` returns."""
        shapes = [self._checkpoint.tensors[name].shape for name in names]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    @property
    def files(self) -> tuple[Path, ...]:
        return self._checkpoint.files

    @property
    def sizes(self) -> list[int]:
        """Elements of each tensor, or part of one, that the model needs."""
        return self._sizes

    def is_mapped(self, names: tuple[str, ...]) -> bool:
        """Whether :meth:`tensor` or :meth:`stacked` gives this tensor as it is in its file."""
        tensors = [self._checkpoint.tensors[name] for name in names if name in self._checkpoint.tensors]
        return (
            len(tensors) == len(names) == 1
            and tensors[0].file.suffix == ".safetensors"
            and tensors[0].dtype == _FILE_DTYPES.get(self._dtype)
        )

    def _mapped(self, name: str, block: Slice | None) -> Tensor:
        """The tensor as it is in its file, or a block of that; a copy where the block is not contiguous there."""
        file = self._checkpoint.tensors[name].file
        try:
            if file not in self._open:
                self._open[file] = self._open_file(file)
            found = self._open[file](name, block)
        except (SafetensorError, OSError, pickle.UnpicklingError, RuntimeError, KeyError, ValueError) as error:
            if isinstance(error, torch.OutOfMemoryError | ModelFilesError):
                raise
            raise ModelFilesError(f"{file}: cannot read {name!r}: {error}; download the file again") from None
        tensor = found.contiguous()
        if self._check_values and not _is_finite(tensor):
            raise ModelFilesError(
                f"{file}: tensor {name!r} holds NaN or infinite numbers; download the file again, or if it was made "
                "so, take another checkpoint"
            )
        if self._device.type == "cpu":
            self._pages.note(file, found.data_ptr(), _extent(found))
        return tensor

    def trust_values(self) -> None:
        """Do not look for NaN: the same files have been loaded before."""
        self._check_values = False

    def _open_file(self, file: Path) -> Callable[[str, Slice | None], Tensor]:
        """What reads a tensor of ``file`` by its name, or a block of it."""
        if file.suffix == ".bin":
            content = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
            # Detached, as `content` keeps its own tensors: what is handed out must end with the last who needs it.
            return lambda name, block: _cut(content[name], block).detach().to(self._device)
        if file.suffix == ".gguf":
            gguf = GgufFile(file)
            return lambda name, block: torch.from_numpy(gguf.array(name, block)).to(self._device)
        whole: Callable[[str], Tensor] = safe_open(file, framework="pt", device=str(self._device)).get_tensor
        if self._device.type == "cpu":
            return lambda name, block: _cut(whole(name), block)
        on_host: Callable[[str], Tensor] = safe_open(file, framework="pt").get_tensor
        return lambda name, block: whole(name) if block is None else _cut(on_host(name), block).to(self._device)


def _cut(tensor: Tensor, block: Slice | None) -> Tensor:
    """A view of the block."""
    if block is None:
        return tensor
    if block.index is not None:
        tensor = tensor[block.index]
    if block.rows is not None:
        tensor = tensor[block.rows.start : block.rows.stop]
    return tensor if block.columns is None else tensor[:, block.columns.start : block.columns.stop]


def _extent(tensor: Tensor) -> int:
    """Bytes from the first element to the last."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize


def _is_finite(tensor: Tensor) -> bool:
    """Whether the tensor has neither NaN nor infinity; its ends show it in one fast pass."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    if tensor.itemsize == 1:  # e4m3 has no infinity, and one NaN of each sign
        return not bool((tensor.view(torch.uint8) & 0x7F == 0x7F).any())
    return all(bool(end.isfinite()) for end in tensor.aminmax())


def _temporary(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory that goes back to the system when the weight is packed; malloc would keep hundreds of megabytes of it."""
    return huge_pages(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)


class DummyWeights:
    """Random weights of the right shapes, the same for the same names; for measurements (``--load_format dummy``).

    All are cut from one sequence of random numbers, as generating each would take longer than reading real ones.
    """

    def __init__(self, config: Wanted, device: torch.device, dtype: torch.dtype) -> None:
        if config.tensors.quantized:
            raise UnsupportedModelError(
                "--load_format dummy makes weights that are not quantised: leave it out, or take "
                "quantization_config out of the model's config.json"
            )
        self._shapes = expected_tensors(config)
        self._device = device
        self._dtype = dtype
        longest = max(math.prod(shape) for shape in self._shapes.values())
        generator = torch.Generator(device).manual_seed(0)
        noise = torch.empty(min(longest, NOISE_LENGTH), device=device)
        self._noise = noise.normal_(0.0, 0.02, generator=generator).to(dtype)

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def tensor(self, name: str, block: Slice | None = None, dtype: torch.dtype | None = None) -> Tensor:
        whole = self._random(name, dtype)
        return whole if block is None else _cut(whole, block).clone(memory_format=torch.contiguous_format)

    def made(self, keys: list[str], make: Callable[[], Tensor]) -> Tensor:
        return make()

    def packed(self, keys: list[str], make: Callable[[], PackedLinear]) -> PackedLinear:
        return make()

    def _random(self, name: str, dtype: torch.dtype | None) -> Tensor:
        shape = self._shapes[name]
        if len(shape) == 1 and name.endswith(".weight"):  # of a norm
            return torch.ones(shape, dtype=dtype or self._dtype, device=self._device)
        tensor = torch.empty(shape, dtype=dtype or self._dtype, device=self._device)
        flat, length = tensor.view(-1), len(self._noise)
        offset, position = zlib.crc32(name.encode()) % length, 0
        while position < len(flat):
            count = min(length - offset, len(flat) - position)
            flat[position : position + count] = self._noise[offset : offset + count]
            offset, position = 0, position + count
        return tensor

    def stored(self, name: str, block: Slice | None = None) -> Tensor:
        return self.tensor(name, block)

    def stacked(self, names: list[str]) -> Tensor:
        parts = [self.tensor(name) for name in names]
        return torch.cat(parts) if len(parts) > 1 else parts[0]
