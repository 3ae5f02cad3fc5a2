"""``blade_llm_quantize``: make a checkpoint 2 to 4 times smaller, in a format that other engines read, too.

Progress and the table of errors go to stderr; the folder, as the last line, to stdout.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from blade_llm.cli.failures import FAILURES, end_with
from blade_llm.cli.flags import FlagParser
from blade_llm.cli.progress.download import download_progress
from blade_llm.cli.progress.job import job_progress
from blade_llm.cli.progress.work import byte_progress
from blade_llm.cli.quantize_flags import GROUPS, options_of, texts_of
from blade_llm.cli.termination import write_termination_log
from blade_llm.hub.locking import locked
from blade_llm.hub.resolve import resolve_model
from blade_llm.quantize.output import OutputFolder
from blade_llm.quantize.report import REPORT_NAME, CalibrationReport, Report, by_kind
from blade_llm.quantize.run import made_before, prepare, quantize_model

_NOTES: Final = 8
"""Notes on weights that are printed; the report has all."""


def main(argv: Sequence[str] | None = None) -> int:
    """Quantise the model; returns the exit code: 0 when it is done, 1 when not."""
    parser = FlagParser("blade_llm_quantize", "Make a model's weights smaller by quantising them.", GROUPS)
    parser.usage = "%(prog)s --model MODEL --output_dir DIR [flags]"
    flags = parser.parse(argv)
    try:
        options = options_of(flags)
    except ValueError as error:
        parser.error(str(error))
    logging.basicConfig(level=logging.WARNING, format="blade_llm_quantize: %(message)s")
    output_dir = flags["output_dir"].expanduser().absolute()
    output = OutputFolder.at(output_dir)
    try:
        texts = texts_of(flags) if options.calibrates else []
        with download_progress() as progress:
            folder = resolve_model(flags["model"], progress=progress)
        job = prepare(
            folder,
            options,
            model=flags["model"],
            max_shard_bytes=flags["max_shard_size"],
            tensor_parallel_size=flags["tensor_parallel_size"],
            split_output=flags["split_output"],
            texts=texts,
            states_in_files=flags["cpu_offload"],
        )
        if (report := made_before(output, job)) is not None:
            return _found(report, output_dir)
        for note in () if job.samples is None else job.samples.notes:
            print(f"blade_llm_quantize: {note}", file=sys.stderr, flush=True)
        output.require_usable(whole=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        with (
            locked(output.lock, lambda: _say_waiting(output)),
            byte_progress("quantising") as start,
            job_progress() as reported,
        ):
            if (report := made_before(output, job)) is not None:  # by the run that was waited for
                return _found(report, output_dir)
            if reported is not None:
                start = reported.counted("quantising", job.config.num_layers, start)
            report = quantize_model(job, output, start)
            if reported is not None:
                reported.say(_saved(report))
    except FAILURES as failure:
        return end_with("blade_llm_quantize", failure, output_dir, kept=os.path.isdir(output.staging))
    _print_report(report)
    return _done(report, output_dir)


def _found(report: Report, output_dir: Path) -> int:
    """Say that the work was done already."""
    print(f"blade_llm_quantize: {output_dir} is there already, made by the same command", file=sys.stderr)
    return _done(report, output_dir)


def _done(report: Report, output_dir: Path) -> int:
    """Leave what was saved where Kubernetes shows it, and the folder on stdout; the exit code."""
    write_termination_log(_saved(report).encode())
    print(output_dir)
    return 0


def _saved(report: Report) -> str:
    sizes = f"{_size(report.bytes_before)} → {_size(report.bytes_after)}"
    return f"{sizes}, {report.bits_per_weight:.2f} bits a quantised weight"


def _say_waiting(output: OutputFolder) -> None:
    print(f"blade_llm_quantize: waiting for another run that writes {output.path}", file=sys.stderr, flush=True)


def _print_report(report: Report) -> None:
    """Weights of all layers by their kind, and what is saved."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=report.options.described, caption_justify="left")
    table.add_column("weights")
    calibration = report.calibration
    outputs = ("outputs",) if any(kind.mean_output_error is not None for kind in by_kind(report)) else ()
    for name in ("layers", "mean error", "largest", *outputs, "bits", "before", "after"):
        table.add_column(name, justify="right")
    for kind in by_kind(report):
        errors = [f"{kind.mean_error:.4f}", f"{kind.largest_error:.4f}"]
        if outputs:
            errors.append("" if kind.mean_output_error is None else f"{kind.mean_output_error:.4f}")
        bits = f"{kind.bits_per_weight:.2f}"
        table.add_row(kind.kind, str(kind.count), *errors, bits, _size(kind.bytes_before), _size(kind.bytes_after))
    before, after = report.bytes_before, report.bytes_after
    table.caption = (
        f"{_size(before)} → {_size(after)} ({before / after:.2f} times smaller), {report.bits_per_weight:.2f} bits a "
        f"quantised weight, {report.seconds:.1f} s. Errors are |W - Q| / |W|"
        + (", of outputs |W X - Q X| / |W X|." if outputs else ".")
    )
    Console(stderr=True, width=None if sys.stderr.isatty() else 140).print(table)
    if calibration is not None:
        _print_calibration(calibration, smooths=report.options.smooths)
    for note, count in itertools.islice(report.notes.items(), _NOTES):
        print(f"blade_llm_quantize: {count} weights: {note}", file=sys.stderr)
    if len(report.notes) > _NOTES:
        print(f"blade_llm_quantize: {len(report.notes) - _NOTES} more notes are in {REPORT_NAME}", file=sys.stderr)


def _print_calibration(calibration: CalibrationReport, *, smooths: bool) -> None:
    """What perplexity became, and what was found."""
    if calibration.smoothing is not None:
        print(f"blade_llm_quantize: smoothed with an exponent of {calibration.smoothing:g}", file=sys.stderr)
    elif smooths:
        print("blade_llm_quantize: not smoothed: no exponent loses less than plain rounding", file=sys.stderr)
    if calibration.left:
        count = len(calibration.left)
        print(f"blade_llm_quantize: {count} weights stay as they are, so that perplexity grows less", file=sys.stderr)
    before, after, increase = calibration.perplexity_before, calibration.perplexity_after, calibration.increase
    if before is None or after is None or increase is None:
        print("blade_llm_quantize: no text has two tokens, so perplexity was not measured", file=sys.stderr)
        return
    of = f"{calibration.held_out} held-out texts" if calibration.held_out else "the calibration texts themselves"
    said = f"perplexity of {of}: {before:.4g} before, {after:.4g} now ({increase:+.2%})"
    print(f"blade_llm_quantize: {said}", file=sys.stderr)


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 10**9 else f"{nbytes / 1e6:.2f} MB"


if __name__ == "__main__":
    sys.exit(main())
