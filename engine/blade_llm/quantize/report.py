"""``quantization_report.json``: what became of each weight, how far it is from the original, and what is saved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from blade_llm.quantize.journal import Done
from blade_llm.quantize.layout import Layout, Unit
from blade_llm.quantize.options import QuantizeOptions

REPORT_NAME: Final = "quantization_report.json"
FORMAT: Final = 2
_NUMBER: Final = re.compile(r"\.\d+(?=\.)")


class TensorReport(msgspec.Struct, frozen=True):
    """A quantised weight."""

    shape: tuple[int, ...]
    error: float
    """``|W - Q| / |W|``, Frobenius norms."""
    bits_per_weight: float
    """With scales and zero points."""
    bytes_before: int
    bytes_after: int
    seconds: float
    output_error: float | None = None
    """``|W X - Q X| / |W X|`` over the tokens of calibration; None where there were none."""
    notes: tuple[str, ...] = ()
    """What a user should know of it."""


class CalibrationReport(msgspec.Struct, frozen=True):
    """What calibration saw, and how the whole model fares."""

    samples: int
    """Texts that were calibrated with."""
    tokens: int
    """Of these."""
    held_out: int
    """Texts that were kept apart, and that perplexity is of; 0: it is of those that were calibrated with."""
    perplexity_before: float | None
    """None where no text has two tokens."""
    perplexity_after: float | None
    smoothing: float | None = None
    """The exponent that SmoothQuant or SmoothQuant+ used; None: nothing was smoothed, which SmoothQuant+ may find
    best."""
    notes: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    """Linear layers that stay as they are for ``max_perplexity_increase``."""

    @property
    def increase(self) -> float | None:
        """Of perplexity, as a share of what it was."""
        if self.perplexity_before is None or self.perplexity_after is None:
            return None
        return self.perplexity_after / self.perplexity_before - 1


class Report(msgspec.Struct, frozen=True):
    """The file."""

    format: int
    fingerprint: str
    """Of the source and of what was to be made of it."""
    model: str
    options: QuantizeOptions
    tensors: dict[str, TensorReport]
    """By the names of the source's weights."""
    unchanged: tuple[str, ...]
    """Tensors that were copied as they were."""
    bytes_before: int
    """Of all tensors."""
    bytes_after: int
    seconds: float
    """Of work on tensors, in all runs together."""
    calibration: CalibrationReport | None = None
    changed: tuple[str, ...] = ()
    """Norms, biases and routers that scales of the linear layers after them went into."""

    @property
    def bits_per_weight(self) -> float:
        """Of all quantised weights together."""
        weights = sum(each.shape[0] * each.shape[1] for each in self.tensors.values())
        return sum(each.bytes_after for each in self.tensors.values()) * 8 / weights

    @property
    def notes(self) -> dict[str, int]:
        """What is to be known of weights, and of how many of them."""
        found: dict[str, int] = {}
        for note in (note for tensor in self.tensors.values() for note in tensor.notes):
            found[note] = found.get(note, 0) + 1
        return found

    @property
    def worst(self) -> tuple[str, TensorReport]:
        """The weight with the largest error."""
        return max(self.tensors.items(), key=lambda each: each[1].error)


def make_report(
    fingerprint: str,
    model: str,
    options: QuantizeOptions,
    layout: Layout,
    done: Mapping[str, Done],
    calibration: CalibrationReport | None = None,
) -> Report:
    """The report of a finished run."""
    units = layout.units
    others = [unit.source.name for unit in units if unit.module is None]
    return Report(
        format=FORMAT,
        fingerprint=fingerprint,
        model=model,
        options=options,
        tensors={unit.source.name: _tensor(unit, done[unit.source.name]) for unit in units if unit.module is not None},
        unchanged=tuple(name for name in others if not done[name].changed),
        changed=tuple(name for name in others if done[name].changed),
        bytes_before=sum(unit.source.nbytes for unit in units if not unit.again),
        bytes_after=sum(unit.nbytes for unit in units),
        seconds=round(sum(done[unit.source.name].seconds for unit in units), 3),
        calibration=calibration,
    )


def _tensor(unit: Unit, done: Done) -> TensorReport:
    assert done.error is not None
    outputs, inputs = unit.source.shape
    return TensorReport(
        shape=unit.source.shape,
        error=done.error,
        bits_per_weight=unit.nbytes * 8 / (outputs * inputs),
        bytes_before=unit.source.nbytes,
        bytes_after=unit.nbytes,
        seconds=round(done.seconds, 3),
        output_error=done.output_error,
        notes=done.notes,
    )


class KindReport(msgspec.Struct, frozen=True):
    """The same weight of all layers."""

    kind: str
    count: int
    mean_error: float
    largest_error: float
    bits_per_weight: float
    bytes_before: int
    bytes_after: int
    mean_output_error: float | None
    """Of those that have one."""


def by_kind(report: Report) -> list[KindReport]:
    """The quantised weights, those of all layers that differ in a number alone taken together."""
    kinds: dict[str, list[TensorReport]] = {}
    for name, tensor in report.tensors.items():
        kinds.setdefault(_NUMBER.sub(".*", name.removesuffix(".weight")), []).append(tensor)
    return [_kind(kind, tensors) for kind, tensors in kinds.items()]


def _kind(kind: str, tensors: list[TensorReport]) -> KindReport:
    after = sum(each.bytes_after for each in tensors)
    weights = sum(each.shape[0] * each.shape[1] for each in tensors)
    outputs = [each.output_error for each in tensors if each.output_error is not None]
    return KindReport(
        kind=kind,
        count=len(tensors),
        mean_error=sum(each.error for each in tensors) / len(tensors),
        largest_error=max(each.error for each in tensors),
        bits_per_weight=after * 8 / weights,
        bytes_before=sum(each.bytes_before for each in tensors),
        bytes_after=after,
        mean_output_error=sum(outputs) / len(outputs) if outputs else None,
    )
