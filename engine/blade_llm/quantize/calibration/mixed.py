"""Automatic mixed precision: the linear layers that lose most stay as they are, as many as it takes for perplexity to
grow by no more than is allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from blade_llm.models.errors import ModelFilesError
from blade_llm.quantize.calibration.layerwise import Layerwise
from blade_llm.quantize.calibration.samples import Samples
from blade_llm.quantize.calibration.search import find_smoothing
from blade_llm.quantize.calibration.work import Work
from blade_llm.quantize.journal import JOURNAL_NAME
from blade_llm.weights.output_folder import write_whole
from blade_llm.weights.split.writer import Progress

_EXACT: Final = 8
"""How many layers are left is found to one of so many of them."""
_TRIES_NAME: Final = f"{JOURNAL_NAME}.tries"
_Errors = dict[tuple[str, ...], float]
"""By the modules of each linear layer."""
_Found = tuple[float, list[tuple[tuple[str, ...], float]]]
"""By how much perplexity grew, and the errors."""


def find_left(work: Work, folder: Path, samples: Samples, start: Callable[[int], Progress]) -> tuple[str, ...]:
    """The linear layers to leave as they are, by their modules, so that perplexity grows by at most the share that the
    options allow.

    Layers are left in the order of the errors of their outputs when all are quantised. How many: as many as the last
    try had, twice as many after each try that is too far off, then by halves. Each try quantises the whole model.
    ``folder``: where tries are noted, which are not made again, and where hidden states are, if in files. ``start``:
    called at each try with the bytes of the layers, gives what is called with those that are done. Raises
    :class:`ModelFilesError` where the share cannot be kept with anything quantised, and for texts without perplexity,
    ``OSError``.
    """
    tries = _Tries(folder / _TRIES_NAME)

    def tried(modules: Mapping[str, str]) -> tuple[float, _Errors]:
        return tries.next(lambda: _try(work, folder, samples, modules, start))

    def keeps(left: list[tuple[str, ...]]) -> bool:
        gone = {module for modules in left for module in modules}
        return tried({name: module for name, module in work.plan.modules.items() if module not in gone})[0] <= most

    allowed = work.options.max_perplexity_increase
    assert allowed is not None
    most: float = allowed
    increase, errors = tried(work.plan.modules)
    if increase <= most:
        return ()
    ordered = sorted(errors, key=lambda modules: (-errors[modules], modules))
    too_few, enough = 0, 1
    while enough < len(ordered) and not keeps(ordered[:enough]):
        too_few, enough = enough, 2 * enough
    if enough >= len(ordered):
        enough = len(ordered) - 1
        if enough <= too_few or not keeps(ordered[:enough]):
            raise ModelFilesError(
                f"--max_perplexity_increase {most:g} cannot be kept: all quantised it is {increase:.3g}, and too much "
                "with a single layer; give a larger one, more bits or another --quant_algo"
            )
    while enough - too_few > max(1, enough // _EXACT):
        middle = (too_few + enough) // 2
        if keeps(ordered[:middle]):
            enough = middle
        else:
            too_few = middle
    return tuple(sorted(module for modules in ordered[:enough] for module in modules))


class _Tries:
    """What tries found, in a file: they follow from each other, so that a run that was killed has the same ones."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._found: list[_Found] = []
        if file.is_file():
            self._found = msgspec.json.decode(file.read_bytes(), type=list[_Found])
        self._given = 0

    def next(self, make: Callable[[], tuple[float, _Errors]]) -> tuple[float, _Errors]:
        """What the next try found, which is made where it is not noted."""
        if self._given == len(self._found):
            increase, errors = make()
            self._found.append((increase, list(errors.items())))
            write_whole(self._file, msgspec.json.encode(self._found))
        increase, pairs = self._found[self._given]
        self._given += 1
        return increase, dict(pairs)


def _try(
    work: Work, folder: Path, samples: Samples, modules: Mapping[str, str], start: Callable[[int], Progress]
) -> tuple[float, _Errors]:
    """By how much perplexity grows with ``modules`` quantised, and the relative error of the outputs of each linear
    layer: of its modules together, as they share kernels."""
    layerwise = Layerwise(work.config, work.reader, samples, work.options, modules, work.images)
    stored = work.reader.checkpoint.tensors
    smoothing: float | None = work.options.smoothing
    if work.options.algorithm == "smoothquant+":
        smoothing = find_smoothing(layerwise, lambda name: None).alpha
    files = layerwise.state_files(folder, mapped=work.states_in_files)
    states = layerwise.first_states(files)
    inside = set().union(*map(layerwise.names, range(layerwise.num_layers)))
    progress = start(sum(stored[name].nbytes for name in modules if name in inside))
    errors: _Errors = {}
    for index in range(layerwise.num_layers):
        after = files.next(states, index + 1)
        files.remove()  # what is mapped stays until nobody needs it
        result = layerwise.quantize_layer(
            index, states, after, smoothing, lambda name: progress(f"a try, {name}", stored[name].nbytes)
        )
        states = after
        for group in layerwise.groups(index):
            for place in group.places:
                parts = layerwise.quantizer.quantized(place)
                found = [result.compressed[part.weight.name] for part in parts]
                if found:
                    worst = max(each.error if each.output_error is None else each.output_error for each in found)
                    errors[tuple(part.module for part in parts)] = worst
    perplexity = layerwise.perplexity(states)
    if perplexity is None:
        raise ModelFilesError("--max_perplexity_increase needs texts of at least two tokens")
    return perplexity.increase, errors
