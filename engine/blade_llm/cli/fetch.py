"""``blade_llm_fetch``: bring a model to this machine or onto a volume, before the engine starts.

Progress goes to stderr and the folder, as the last line, to stdout; how it ended goes to the termination log.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from blade_llm.cli.progress import download_progress
from blade_llm.cli.strict_arguments import parse_strictly
from blade_llm.cli.termination import write_termination_log
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.hub import resolve_model
from blade_llm.models.materialize import materialize
from blade_protocol.environment import TERMINATION_LOG_MAX_BYTES
from blade_protocol.fetch import FetchReport


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch the model; returns the exit code: 0 when it is there, 1 when not."""
    parser = argparse.ArgumentParser(prog="blade_llm_fetch", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--model", required=True, metavar="MODEL", help="a folder, or a hub id: ORG/NAME, hf://ORG/NAME@REVISION"
    )
    parser.add_argument(
        "--output_dir", type=Path, metavar="DIR", help="make this folder the model; by default the hub's cache is used"
    )
    options = parse_strictly(parser, arguments)
    try:
        with download_progress() as progress:
            if options.output_dir is None:
                folder = resolve_model(options.model, progress=progress)
            else:
                folder = materialize(options.model, options.output_dir, progress=progress)
    except ModelFilesError as error:
        print(f"blade_llm_fetch: {error}", file=sys.stderr)
        _report(FetchReport(model=options.model, ready=False, message=str(error)))
        return 1
    except KeyboardInterrupt:
        print("blade_llm_fetch: stopped; what has arrived is kept, the same command continues", file=sys.stderr)
        return 130
    sizes = [file.stat().st_size for file in folder.iterdir() if file.is_file()]
    print(folder)
    _report(FetchReport(model=options.model, ready=True, folder=str(folder), files=len(sizes), bytes=sum(sizes)))
    return 0


def _report(report: FetchReport) -> None:
    data = msgspec.json.encode(report)
    if len(data) > TERMINATION_LOG_MAX_BYTES:
        # Names are bounded by the system; only a message can be long. One character is at most six bytes of JSON.
        cut = report.message[: TERMINATION_LOG_MAX_BYTES // 12] + "..."
        data = msgspec.json.encode(msgspec.structs.replace(report, model=report.model[:256], message=cut))
    write_termination_log(data)


if __name__ == "__main__":
    sys.exit(main())
