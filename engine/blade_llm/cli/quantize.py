"""``blade_llm_quantize``: make a checkpoint 2 to 4 times smaller, in a format that other engines read, too.

Progress and the table of errors go to stderr; the folder, as the last line, to stdout.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from blade_llm.cli.byte_progress import FAILURES, byte_progress, end_with
from blade_llm.cli.flags import FlagParser
from blade_llm.cli.progress import download_progress
from blade_llm.cli.quantize_flags import GROUPS, options_of
from blade_llm.hub.locking import locked
from blade_llm.hub.resolve import resolve_model
from blade_llm.quantize.output import OutputFolder
from blade_llm.quantize.report import Report, by_kind
from blade_llm.quantize.run import prepare, quantize_model


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
        with download_progress() as progress:
            folder = resolve_model(flags["model"], progress=progress)
        job = prepare(
            folder,
            options,
            model=flags["model"],
            max_shard_bytes=flags["max_shard_size"],
            tensor_parallel_size=flags["tensor_parallel_size"],
        )
        output.require_usable(whole=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        with locked(output.lock, lambda: _say_waiting(output)), byte_progress("quantising") as start:
            report = quantize_model(job, output, start)
    except FAILURES as failure:
        return end_with("blade_llm_quantize", failure, output_dir, kept=os.path.isdir(output.staging))
    _print_report(report)
    print(output_dir)
    return 0


def _say_waiting(output: OutputFolder) -> None:
    print(f"blade_llm_quantize: waiting for another run that writes {output.path}", file=sys.stderr, flush=True)


def _print_report(report: Report) -> None:
    """Weights of all layers by their kind, and what is saved."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=report.options.described, caption_justify="left")
    table.add_column("weights")
    for name in ("layers", "mean error", "largest", "bits", "before", "after"):
        table.add_column(name, justify="right")
    for kind in by_kind(report):
        errors = (f"{kind.mean_error:.4f}", f"{kind.largest_error:.4f}", f"{kind.bits_per_weight:.2f}")
        table.add_row(kind.kind, str(kind.count), *errors, _size(kind.bytes_before), _size(kind.bytes_after))
    before, after = report.bytes_before, report.bytes_after
    table.caption = (
        f"{_size(before)} → {_size(after)} ({before / after:.2f} times smaller), {report.bits_per_weight:.2f} bits a "
        f"quantised weight, {report.seconds:.1f} s. Errors are |W - Q| / |W|."
    )
    Console(stderr=True, width=None if sys.stderr.isatty() else 140).print(table)


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 10**9 else f"{nbytes / 1e6:.2f} MB"


if __name__ == "__main__":
    sys.exit(main())
