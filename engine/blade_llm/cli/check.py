"""``blade_llm_check``: judge an environment, and with ``--model`` a model in it, before anything is served.

The flags about memory and text are the server's own, so that both make the same plan and read the same files.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from blade_llm.check.items import run_items
from blade_llm.check.model import Wanted
from blade_llm.check.report import encode_report, format_item, format_totals, summarize
from blade_llm.cli.check_flags import NODE_FLAGS, OWN_FLAGS, names_of, ranks_of
from blade_llm.cli.flags import FlagParser
from blade_llm.cli.presets import use_preset
from blade_llm.cli.progress.download import download_progress
from blade_llm.cli.server_flags import GROUPS, MEMORY_FIELDS, PRESET, TEXT_FIELDS, memory_fields, text_fields
from blade_llm.cli.termination import write_termination_log
from blade_llm.config import EngineConfig
from blade_llm.hub.resolve import resolve_model
from blade_llm.models.errors import ModelFilesError
from blade_llm.speculative_options import SPECULATIVE_FLAGS, speculative_from_flags
from blade_protocol.check import CheckItem
from blade_protocol.environment import TERMINATION_LOG, TERMINATION_LOG_MAX_BYTES

PROGRAM: Final = "blade_llm_check"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check and return the status: 0 or 1 by the items and ``--mode``; wrong flags exit with 2."""
    parser = _parser()
    flags = parser.parse(argv)
    use_preset(parser, flags)
    try:
        ranks = ranks_of(flags)
        names = names_of(flags, ranks)
    except ValueError as error:
        parser.error(str(error))
    # Planning logs its remarks; here they stand in the report, which nothing may interrupt.
    logging.getLogger("blade_llm").addHandler(logging.NullHandler())

    def show(item: CheckItem) -> None:
        print(format_item(item), flush=True)

    report = summarize(run_items(names, _engine_config(flags), _wanted(flags), show, ranks))
    print(f"\n{format_totals(report)}", flush=True)
    write_termination_log(encode_report(report, TERMINATION_LOG_MAX_BYTES))
    return 1 if report.failed or (report.warnings and flags["mode"] == "enforce") else 0


def _engine_config(flags: Mapping[str, Any]) -> Callable[[], EngineConfig]:
    """Gives the engine's configuration; the model is resolved at the first call, and later ones end as it did."""
    found: EngineConfig | ModelFilesError | None = None

    def config() -> EngineConfig:
        nonlocal found
        if found is None:
            try:
                with download_progress() as progress:
                    folder = resolve_model(flags["model"], progress=progress)
                    speculative = speculative_from_flags(flags, partial(resolve_model, progress=progress))
                found = EngineConfig(
                    model=str(folder),
                    served_names=(),
                    speculative=speculative,
                    nnodes=flags["nnodes"],
                    node_rank=flags["node_rank"],
                    **memory_fields(flags),
                )
            except ModelFilesError as error:
                found = error
            except ValueError as error:
                found = ModelFilesError(str(error))
        if isinstance(found, ModelFilesError):
            raise found
        return found

    return config


def _wanted(flags: Mapping[str, Any]) -> Wanted:
    return Wanted(
        **text_fields(flags), guided=flags["enable_json_warmup"], draft_tokenizer_dir=flags["draft.tokenizer_dir"]
    )


def _parser() -> FlagParser:
    server = [flag for group in GROUPS.values() for flag in group]
    of_memory = {*MEMORY_FIELDS, *SPECULATIVE_FLAGS, "pipeline_parallel_size"} - {*TEXT_FIELDS}
    of_memory -= {flag.name for flag in NODE_FLAGS}
    memory = (PRESET, *(flag for flag in server if flag.name in of_memory))
    text = tuple(flag for flag in server if flag.name in (*TEXT_FIELDS, "enable_json_warmup"))
    parser = FlagParser(
        PROGRAM,
        "Judge an environment, and with --model a model in it, before anything is served.",
        [
            ("check", OWN_FLAGS),
            ("several machines", NODE_FLAGS),
            ("the server's flags, for check_memory_fit", memory),
            ("the server's flags, for check_model", text),
        ],
    )
    parser.usage = "%(prog)s [--items NAME,...] [--model DIR] [--mode MODE] [flags]"
    parser.epilog = (
        "Exit status: 0 when all items pass (--mode warn: when none failed), 1 otherwise, 2 for wrong flags. "
        f"The result also goes, as JSON, to the file named by {TERMINATION_LOG}."
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
