"""Calibration as a part of a run of ``blade_llm_quantize``: what it leaves in the staging folder and finds out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

from blade_llm.models.errors import ModelFilesError
from blade_llm.quantize.calibration.layerwise import Layerwise
from blade_llm.quantize.calibration.samples import Samples
from blade_llm.quantize.calibration.search import TRIED, find_smoothing
from blade_llm.quantize.calibration.work import Work
from blade_llm.quantize.calibration.write import LayerWriter
from blade_llm.quantize.journal import JOURNAL_NAME, Done, Journal
from blade_llm.quantize.report import CalibrationReport
from blade_llm.weights.output_folder import write_whole
from blade_llm.weights.split.writer import Progress

_FOUND_NAME: Final = f"{JOURNAL_NAME}.smoothing"
_UNSMOOTHED: Final = "nothing is smoothed: on the calibration texts no exponent loses less than rounding as it is"


class Calibration:
    """The decoder layers of a job with a calibrated algorithm."""

    def __init__(self, work: Work, folder: Path, samples: Samples) -> None:
        """``folder``: the staging folder."""
        self._work = work
        self._folder = folder
        self._samples = samples
        self._layerwise = Layerwise(work.config, work.reader, samples, work.options, work.plan.modules, work.images)
        self._files = self._layerwise.state_files(folder, mapped=work.states_in_files)

    @property
    def nbytes(self) -> int:
        """Of the files with states that lie in the folder meanwhile."""
        return 2 * self._files.nbytes

    @property
    def names(self) -> Collection[str]:
        """The tensors of all decoder layers."""
        layerwise = self._layerwise
        return set().union(*(layerwise.names(index) for index in range(layerwise.num_layers)))

    def run(
        self, journal: Journal, done: Mapping[str, Done], start: Callable[[int], Progress], progress: Progress
    ) -> tuple[dict[str, Done], CalibrationReport]:
        """Quantise and write all decoder layers that are not ``done``; returns what is done then, and what was found.

        ``start``, ``progress``: as of :func:`~blade_llm.quantize.run.quantize_model`, and what it gave for all tensors.
        Raises :class:`ModelFilesError` for weights and activations that cannot be quantised, ``OSError``.
        """
        try:
            smoothing = self._smoothing(start)
            writer = LayerWriter(self._folder, self._work.layout, self._work.reader, journal)
            all_done, states = writer.write(self._layerwise, self._files, done, smoothing, progress)
            found = self._layerwise.perplexity(states)
        except ValueError as error:
            raise error if isinstance(error, ModelFilesError) else ModelFilesError(f"calibration: {error}") from None
        samples = self._samples
        report = CalibrationReport(
            samples=len(samples.calibrating),
            tokens=samples.tokens,
            held_out=samples.held_out,
            perplexity_before=None if found is None else found.before,
            perplexity_after=None if found is None else found.after,
            smoothing=smoothing if self._work.options.smooths else None,
            notes=(*samples.notes, *((_UNSMOOTHED,) if smoothing is None else ())),
            left=self._work.left,
        )
        return all_done, report

    def _smoothing(self, start: Callable[[int], Progress]) -> float | None:
        """SmoothQuant's exponent; that of SmoothQuant+ is searched, once: None where none is best."""
        if self._work.options.algorithm != "smoothquant+":
            return self._work.options.smoothing
        file = self._folder / _FOUND_NAME
        if file.is_file():
            found: float | None = msgspec.json.decode(file.read_bytes(), type=float | None)
            return found
        names = self.names
        of_layers = sum(unit.source.nbytes for unit in self._work.layout.units if unit.source.name in names)
        of_layer = of_layers // self._layerwise.num_layers
        progress = start(len(TRIED) * self._layerwise.num_layers * of_layer)
        alpha = find_smoothing(self._layerwise, lambda name: progress(name, of_layer)).alpha
        write_whole(file, msgspec.json.encode(alpha))
        return alpha
