"""Which tensors of a checkpoint are weights that become smaller, and which stay as they are."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from blade_llm.models.config import ModelConfig
from blade_llm.models.errors import ModelFilesError
from blade_llm.quantize.options import QuantizeOptions
from blade_llm.spec.tensors import EMBEDDING, LinearPart
from blade_llm.weights.tensor_info import TensorInfo

_REGEX: Final = "re:"
_LIKELY_GROUPS: Final = (128, 64, 32, 16)
_TABLES: Final = (EMBEDDING, "positions", "token_types")
"""Places that are looked up in, not multiplied with: no linear layers."""
_HEAD: Final = "lm_head"
"""What transformers calls the output matrix's module, also of families whose checkpoints have another name for it."""
_HEAD_PLACE: Final = "head"
_KEPT: Final = (_HEAD_PLACE, "classifier.")
"""What places of linear layers begin with that stay as they are unless something else is wanted."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens to each tensor."""

    modules: Mapping[str, str]
    """The linear layers that become smaller, by the names of their weights."""
    ignore: tuple[str, ...]
    """Linear layers that stay as they are, as ``quantization_config`` names them."""
    table: str | None = None
    """The module of the embedding table, where that becomes smaller, too; it is one of :attr:`modules`."""
    untied: str | None = None
    """The output matrix's weight, where the source has it as the embedding table alone."""
    head: str | None = None
    """The module of the output matrix, where that becomes smaller, too; it is one of :attr:`modules`."""

    def without(self, left: Collection[str]) -> Plan:
        """The plan with the linear layers ``left``, by their modules, as they are."""
        modules = {name: module for name, module in self.modules.items() if module not in left}
        return replace(self, modules=modules, ignore=tuple(sorted({*self.ignore, *left})))


def make_plan(
    config: ModelConfig,
    tensors: Mapping[str, TensorInfo],
    options: QuantizeOptions,
    head: str,
    untied: str | None = None,
) -> Plan:
    """What ``options`` do to a checkpoint of ``config`` with these ``tensors``. ``head``: what the family calls the
    module of the output matrix, which may be the embedding table and not in the checkpoint. ``untied``: as in
    :class:`Plan`.

    Raises :class:`~blade_llm.models.errors.ModelFilesError` for layers that cannot be quantised and are not ignored,
    groups that do not divide a layer's inputs, and where nothing is called what is to be ignored, or nothing is left.
    """
    found = config.tensors.found_in(tensors)
    linear = {part.module: part for linear in found.linears.values() for part in linear.parts}
    inside = {
        part.module: part
        for place, each in found.linears.items()
        if not place.startswith(_KEPT) or (options.head and place == _HEAD_PLACE)
        for part in each.parts
    }
    stored = {name.removesuffix(".weight") for name in tensors if name.endswith(".weight")}
    output = found.linears[_HEAD_PLACE].parts[0].module if options.head else None
    ignored = _ignored(options.ignore, linear, {*stored, head, _HEAD})
    if output in ignored:
        raise ModelFilesError(f"--ignore leaves {output} as it is, and --quant_lm_head does not; leave out one of them")
    wanted = {module: part for module, part in inside.items() if module not in ignored}
    if not wanted:
        raise ModelFilesError("nothing is left to quantise; take something out of --ignore")
    for module, part in wanted.items():
        if why := _unfit(part):
            raise ModelFilesError(f"{module} {why}, which the compressed-tensors format does not have")
    modules = {part.weight.name: module for module, part in wanted.items()}
    table = found.tensors[EMBEDDING] if options.embedding else None
    _require_groups(modules, inside, options.group_size)
    if table is not None:
        modules[table.name] = table.module
    tables = {found.tensors[place].name for place in _TABLES if place in found.tensors}
    others = {
        name.removesuffix(".weight")
        for name, info in tensors.items()
        if name.endswith(".weight") and len(info.shape) == 2 and name not in modules and name not in tables
    }
    left = linear.keys() - set(modules.values())
    left |= set() if options.head else {head, _HEAD}
    return Plan(modules, tuple(sorted(others | left)), None if table is None else table.module, untied, output)


def _unfit(part: LinearPart) -> str | None:
    """Why the module is no linear layer of its own with a weight [out, in]."""
    if part.unit_rows:
        return "is used with each row divided by its length"
    if part.one_of is not None:
        return "is one tensor for all experts of a layer"
    return "is stored as [in, out]" if part.transposed else None


def _ignored(patterns: Sequence[str], modules: Mapping[str, LinearPart], others: Collection[str]) -> set[str]:
    """Those of ``modules`` that are to be ignored. ``others`` may be named, too: they are left as they are anyway."""
    found: set[str] = set()
    for pattern in patterns:
        matches = _matcher(pattern)
        these = {module for module in modules if matches(module)}
        if not these and not any(map(matches, others)):
            near = difflib.get_close_matches(pattern, modules, 1)
            hint = f"did you mean {near[0]}?" if near else f"names are like {next(iter(modules))}"
            raise ModelFilesError(f"--ignore {pattern}: the model has no linear layer of that name; {hint}")
        found |= these
    return found


def _matcher(pattern: str) -> Callable[[str], bool]:
    if not pattern.startswith(_REGEX):
        return lambda module: fnmatch.fnmatchcase(module, pattern)
    try:
        expression = re.compile(pattern.removeprefix(_REGEX))
    except re.error as error:
        raise ModelFilesError(f"--ignore {pattern}: not a regular expression ({error})") from None
    return lambda module: expression.match(module) is not None


def _require_groups(modules: Mapping[str, str], parts: Mapping[str, LinearPart], group: int | None) -> None:
    if group is None:
        return
    wrong = [module for module in modules.values() if parts[module].inputs % group]
    if wrong:
        inputs = parts[wrong[0]].inputs
        more = f" and of {len(wrong) - 1} more layers" if len(wrong) > 1 else ""
        raise ModelFilesError(
            f"--block_size {group} does not divide the {inputs} inputs of {wrong[0]}{more}; nothing is padded: "
            f"{_advice(inputs)}"
        )


def _advice(inputs: int) -> str:
    fits = [str(size) for size in _LIKELY_GROUPS if inputs % size == 0]
    other = "leave out --block_wise_quant (one scale an output), or name the layers with --ignore"
    return f"give --block_size {' or '.join(fits)}, or {other}" if fits else other
