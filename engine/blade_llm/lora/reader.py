"""An adapter's weights out of a folder that PEFT wrote."""

from __future__ import annotations

import hashlib
import logging
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from blade_llm.kernels.lora import Factors, Slice
from blade_llm.lora.errors import AdapterError
from blade_llm.lora.packing import PackedAdapter
from blade_llm.lora.peft_config import PeftConfig, read_peft_config
from blade_llm.lora.targets import Target, Targets
from blade_llm.models.errors import ModelFilesError
from blade_llm.spec.tensors import LinearPart
from blade_llm.weights.checkpoint import read_tensor_headers
from blade_llm.weights.tensor_info import TensorInfo

WEIGHT_NAMES: Final = ("adapter_model.safetensors", "adapter_model.bin")
"""The first that is there is read."""
_KEY: Final = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<matrix>[AB])(?:\.[^.]+)?\.weight")
_TYPES: Final = ("BF16", "F16", "F32")
_MERGE: Final = "merge the adapter into its model (PEFT: merge_and_unload) and serve that"

_T = TypeVar("_T")
_Shapes = tuple[tuple[int, ...], tuple[int, ...]]
"""Of A and B."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """An adapter in the form in which it is multiplied, in host memory."""

    digest: bytes
    """sha256 of its content: weights and scales, whatever file they are in."""
    factors: Mapping[str, Factors]
    """By place in the model."""
    rank: int
    """The largest of its modules."""
    packed: PackedAdapter | None = None
    """All of ``factors`` as they are copied to the device, where that is so; ``factors`` is empty then."""

    @property
    def nbytes(self) -> int:
        """Of all matrices."""
        if self.packed is not None:
            return self.packed.nbytes
        return sum(factors.nbytes for factors in self.factors.values())


class AdapterReader:
    """Reads adapters of one model.

    Args:
        max_rank: larger ones are refused.
        dtype: the type their weights get.
        prepare: makes of what was read the form in which it is copied to the device; None: it stays as it is.
    """

    def __init__(
        self,
        targets: Targets,
        max_rank: int,
        dtype: torch.dtype,
        prepare: Callable[[AdapterWeights], AdapterWeights] | None = None,
    ) -> None:
        self._targets = targets
        self._max_rank = max_rank
        self._dtype = dtype
        self._prepare = prepare

    def check(self, folder: Path) -> int:
        """The rank of the adapter in ``folder``, by its configuration and its file's header. Raises
        :class:`AdapterError` for all that :meth:`read` does, but for what only weights show: NaN."""
        return check_adapter(folder, self._targets, max_rank=self._max_rank)

    def read(self, folder: Path) -> AdapterWeights:
        """The adapter in ``folder``. Raises :class:`AdapterError`."""
        weights = read_adapter(folder, self._targets, max_rank=self._max_rank, dtype=self._dtype)
        return weights if self._prepare is None else self._prepare(weights)


def check_adapter(folder: Path, targets: Targets, *, max_rank: int) -> int:
    """The rank of the adapter in ``folder``, without reading its weights. Raises :class:`AdapterError`."""
    config, file = _open(folder)
    with _named(folder, config):
        shapes = _pair(file, {name: info.shape for name, info in _headers(file).items()})
        _check(file, config, targets, shapes, max_rank)
    return _rank(shapes)


def read_adapter(folder: Path, targets: Targets, *, max_rank: int, dtype: torch.dtype) -> AdapterWeights:
    """Read, check and prepare the adapter in ``folder``, in ``dtype``.

    Raises :class:`AdapterError`, whose message says what to change, for everything that is not served or not sound.
    """
    config, file = _open(folder)
    with _named(folder, config):
        modules = _pair(file, _read(file))
        shapes = {module: (tuple(a.shape), tuple(b.shape)) for module, (a, b) in modules.items()}
        found = _check(file, config, targets, shapes, max_rank)
        _check_finite(modules)
    return AdapterWeights(
        digest=_digest(config, modules),
        factors=_factors(config, targets, modules, found, dtype),
        rank=_rank(shapes),
    )


def _open(folder: Path) -> tuple[PeftConfig, Path]:
    """The configuration, and the file of the weights."""
    config = read_peft_config(folder)
    file = next((folder / name for name in WEIGHT_NAMES if (folder / name).is_file()), None)
    if file is None:
        raise AdapterError(f"{folder} has neither {' nor '.join(WEIGHT_NAMES)}; give a folder that PEFT wrote")
    return config, file


@contextmanager
def _named(folder: Path, config: PeftConfig) -> Iterator[None]:
    """Errors say which adapter it is, and of which model."""
    try:
        yield
    except AdapterError as error:
        base = config.base_model_name_or_path
        of = f" (it was made for {base})" if base else ""
        raise AdapterError(f"adapter {folder}{of}: {error}") from None


def _headers(file: Path) -> dict[str, TensorInfo]:
    try:
        headers = read_tensor_headers(file)
    except ModelFilesError as error:
        raise AdapterError(str(error)) from None
    if odd := [f"{info.name} is {info.dtype}" for info in headers.values() if info.dtype not in _TYPES]:
        raise AdapterError(f"{file.name}: {odd[0]}; supported are BF16, F16, F32")
    return headers


def _read(file: Path) -> dict[str, Tensor]:
    """All tensors, copied: a file that changes later changes nothing."""
    _headers(file)
    try:
        if file.suffix == ".safetensors":
            tensors: dict[str, Tensor] = load_file(file)
            return tensors
        loaded: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
        return {name: tensor.detach() for name, tensor in loaded.items()}
    except (SafetensorError, OSError, pickle.UnpicklingError, RuntimeError, ValueError) as error:
        raise AdapterError(f"{file} cannot be read: {error}; download it again") from None


def _pair(file: Path, tensors: Mapping[str, _T]) -> dict[str, tuple[_T, _T]]:
    """A and B, or what is known of them, by module, whose names are those of the base model."""
    halves: dict[str, dict[str, _T]] = {}
    for name, tensor in tensors.items():
        key = _KEY.fullmatch(name)
        if key is None:
            raise AdapterError(
                f"{file.name}: {name} is not served, only lora_A and lora_B of linear layers are; {_MERGE}"
            )
        half = halves.setdefault(key["module"], {})
        if key["matrix"] in half:
            raise AdapterError(f"{file.name} has several adapters for {key['module']}; save one of them")
        half[key["matrix"]] = tensor
    if not halves:
        raise AdapterError(f"{file.name} has no tensors; save the adapter again")
    for module, half in halves.items():
        if len(half) < 2:
            missing = "B" if "A" in half else "A"
            raise AdapterError(f"{file.name} lacks lora_{missing} of {module}; save the adapter again")
    return {module: (halves[module]["A"], halves[module]["B"]) for module in sorted(halves)}


def _check(
    file: Path, config: PeftConfig, targets: Targets, shapes: Mapping[str, _Shapes], max_rank: int
) -> dict[str, Target]:
    """The model's layer of each module, after all checks that need no weights."""
    _check_ranks(file, config, shapes, max_rank)
    found = {module: _checked(module, targets.find(module), *pair) for module, pair in shapes.items()}
    _check_complete(config, targets, found)
    return found


def _rank(shapes: Mapping[str, _Shapes]) -> int:
    return max(a[0] for a, _ in shapes.values())


def _check_ranks(file: Path, config: PeftConfig, shapes: Mapping[str, _Shapes], limit: int) -> None:
    for module, (a, b) in shapes.items():
        if len(a) != 2 or len(b) != 2 or a[0] != b[1]:
            raise AdapterError(f"{module}: lora_A is {list(a)} and lora_B {list(b)}, which do not fit together")
        if a[0] != config.rank(module):
            raise AdapterError(
                f"{module}: its weights have rank {a[0]}, adapter_config.json says {config.rank(module)}; "
                f"{file.name} and adapter_config.json do not belong together"
            )
    largest = _rank(shapes)
    if largest > limit:
        raise AdapterError(
            f"its rank {largest} is more than --max_lora_rank {limit}; start the server with --max_lora_rank {largest}"
        )


def _checked(module: str, target: Target, a: tuple[int, ...], b: tuple[int, ...]) -> Target:
    part = target.part
    if (a[1], b[0]) != (part.inputs, part.outputs):
        raise AdapterError(
            f"{module} maps {a[1]} inputs to {b[0]} outputs, this model's {part.inputs} to {part.outputs}; "
            "it is another model's adapter"
        )
    return target


def _check_finite(modules: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    for module, pair in modules.items():
        if not all(bool(end.isfinite()) for tensor in pair for end in tensor.aminmax()):
            raise AdapterError(f"{module} has NaN or infinite weights; train or download the adapter again")


def _check_complete(config: PeftConfig, targets: Targets, found: Mapping[str, Target]) -> None:
    """What ``target_modules`` names is there: a half-copied adapter would answer with half its effect."""
    have = {target.part.module for target in found.values()}
    missing = [module for module in targets.modules if module not in have and config.targets(module)]
    if missing and config.target_modules != "all-linear":
        raise AdapterError(
            f"the weights of {len(missing)} modules that target_modules names are missing, such as {missing[0]}; "
            "download the adapter again, or correct target_modules"
        )


def _digest(config: PeftConfig, modules: dict[str, tuple[Tensor, Tensor]]) -> bytes:
    digest = hashlib.sha256()
    for module, pair in modules.items():
        digest.update(f"{module}\0{config.scale(module)!r}\0".encode())
        for tensor in pair:
            digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.digest()


def _part(part: LinearPart, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Of an adapter's matrices what belongs to ``part``: B for its outputs, A for its inputs. What ranks make of their
    parts adds up to what one makes of the whole, as their layers' own results do."""
    if part.columns is not None:
        a = a[:, part.columns.start : part.columns.stop]
    if isinstance(part.rows, range):
        b = b[part.rows.start : part.rows.stop : part.rows.step]
    elif part.rows is not None:
        b = b.index_select(0, torch.tensor(part.rows))
    return a, b


def _factors(
    config: PeftConfig,
    targets: Targets,
    modules: dict[str, tuple[Tensor, Tensor]],
    found: Mapping[str, Target],
    dtype: torch.dtype,
) -> dict[str, Factors]:
    """By place here: A of all its modules one under the other, each one's B for its own outputs; copies, not views."""
    by_place: dict[str, list[str]] = {}
    for module, target in found.items():
        if not target.here:
            continue
        by_place.setdefault(target.place, []).append(module)
    result: dict[str, Factors] = {}
    for place, names in by_place.items():
        names.sort(key=lambda name: found[name].first_output)
        shrink, slices, rank = [], [], 0
        for name in names:
            target = found[name]
            a, b = _part(target.part, *modules[name])
            scaled = (b.float() * config.scale(name)).t().to(dtype).contiguous()
            shrink.append(a.to(dtype))
            slices.append(Slice(target.first_output, rank, scaled))
            rank += len(a)
        outputs = sum(part.wanted for part in targets.linears[place].parts)
        result[place] = Factors(torch.cat(shrink).contiguous(), tuple(slices), outputs)
    return result
