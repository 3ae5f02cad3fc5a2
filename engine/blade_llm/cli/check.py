"""``blade_llm_check``: judge an environment, and with ``--model`` a model in it, before anything is served."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from blade_llm.check.items import ENVIRONMENT_ITEMS, MODEL_ITEMS, parse_items, run_items
from blade_llm.check.memory_fit import MemoryFlags
from blade_llm.check.report import encode_report, format_item, format_totals, summarize
from blade_llm.cli.progress import download_progress
from blade_llm.cli.strict_arguments import parse_strictly, positive_int
from blade_llm.cli.termination import write_termination_log
from blade_llm.models.dtypes import DTYPE_ALIASES, DTYPE_BYTES
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.hub import resolve_model
from blade_protocol.check import CheckItem
from blade_protocol.environment import TERMINATION_LOG, TERMINATION_LOG_MAX_BYTES

EXIT_CODES: Final = "exit status: 0 when all items pass (--mode warn: when none failed), 1 otherwise, 2 for wrong flags"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; returns the exit code."""
    parser = _parser()
    options = parse_strictly(parser, arguments)
    names = options.items or (*ENVIRONMENT_ITEMS, *(MODEL_ITEMS if options.model else ()))
    without_model = [name for name in names if name in MODEL_ITEMS and not options.model]
    if without_model:
        parser.error(f"{', '.join(without_model)} needs --model DIR")
    flags = MemoryFlags(
        kv_cache_bytes=options.kv_cache_bytes,
        max_model_len=options.max_model_len,
        dtype=options.dtype,
        max_num_seqs=options.max_num_seqs,
        max_batch_tokens=options.ragged_flash_max_batch_tokens,
    )

    resolved: Path | ModelFilesError | None = None

    def model() -> Path:
        nonlocal resolved
        if resolved is None:
            try:
                with download_progress() as progress:
                    resolved = resolve_model(options.model, progress=progress)
            except ModelFilesError as error:
                resolved = error
        if isinstance(resolved, ModelFilesError):
            raise resolved
        return resolved

    def show(item: CheckItem) -> None:
        print(format_item(item), flush=True)

    report = summarize(run_items(names, model, flags, show))
    print(f"\n{format_totals(report)}", flush=True)
    write_termination_log(encode_report(report, TERMINATION_LOG_MAX_BYTES))
    return 1 if report.failed or (report.warnings and options.mode == "enforce") else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="blade_llm_check",
        description=__doc__,
        allow_abbrev=False,
        epilog=f"{EXIT_CODES}. The result also goes, as JSON, to the file named by {TERMINATION_LOG}.",
    )
    listed = ", ".join(f"{name} ({short})" for name, short in {**ENVIRONMENT_ITEMS, **MODEL_ITEMS}.items())
    parser.add_argument(
        "--items",
        type=_items,
        metavar="NAME,...",
        help=f"what to check, by full or short name: {listed}; by default the first three, with --model all",
    )
    parser.add_argument("--model", metavar="DIR", help="model folder (or hub id) to check")
    parser.add_argument(
        "--mode",
        choices=("enforce", "warn"),
        default="enforce",
        help="enforce: a WARNING exits 1 too; warn: only a FAILED does",
    )
    defaults = MemoryFlags()
    server = parser.add_argument_group("flags of the server, for check_memory_fit")
    server.add_argument("--kv_cache_bytes", type=positive_int, metavar="N", help="a quarter of the memory by default")
    server.add_argument("--max_model_len", type=positive_int, metavar="N", help="the model's own length by default")
    server.add_argument("--max_num_seqs", type=positive_int, default=defaults.max_num_seqs, metavar="N")
    server.add_argument(
        "--ragged_flash_max_batch_tokens", type=positive_int, default=defaults.max_batch_tokens, metavar="N"
    )
    server.add_argument("--dtype", choices=("auto", *DTYPE_BYTES, *DTYPE_ALIASES), default="auto")
    return parser


def _items(text: str) -> tuple[str, ...]:
    try:
        return parse_items(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
