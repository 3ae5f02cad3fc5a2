"""``blade_llm_fetch``: bring a model to this machine or onto a volume, before the engine starts.

Progress goes to stderr and, where the operator polls, over HTTP; the folder, as the last line, to stdout; how it ended
goes to the termination log.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from blade_llm.cli.flags import Flag, FlagParser
from blade_llm.cli.progress.download import download_progress
from blade_llm.cli.progress.fetch import Meter, serve_progress
from blade_llm.cli.termination import write_termination_log
from blade_llm.hub.materialize import materialize, model_files
from blade_llm.hub.model import Progress, ProgressCallback
from blade_llm.hub.resolve import resolve_model
from blade_llm.models.errors import ModelFilesError
from blade_protocol.environment import TERMINATION_LOG_MAX_BYTES
from blade_protocol.fetch import FetchReport

_FLAGS: Final = (
    Flag(name="model", help="a folder, or a hub id: ORG/NAME, hf://ORG/NAME@REVISION", required=True, metavar="MODEL"),
    Flag(name="draft.model", help="a draft model or draft head for it, which is fetched after it", metavar="MODEL"),
    Flag(name="output_dir", help="make this folder the model (default: use the hub's cache)", kind=Path, metavar="DIR"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch the model; returns the exit code: 0 when it is there, 1 when not."""
    parser = FlagParser("blade_llm_fetch", "Bring a model to this machine, or onto a volume.", [("fetch", _FLAGS)])
    parser.usage = "%(prog)s --model MODEL [--draft.model MODEL | --output_dir DIR]"
    flags = parser.parse(argv)
    model, draft, output_dir = flags["model"], flags["draft.model"], flags["output_dir"]
    if draft is not None and output_dir is not None:
        parser.error("--output_dir makes one folder of one model: fetch --draft.model with a command of its own")
    meter = Meter(model)
    try:
        with download_progress() as show, serve_progress(meter):

            def progress(now: Progress) -> None:
                show(now)
                meter(now)

            if output_dir is None:
                folder = resolve_model(model, progress=progress)
            else:
                folder = materialize(model, output_dir, progress=progress)
            folders = [folder]
            if draft is not None:
                meter.next_model()
                folders.append(_fetch_draft(draft, progress))
    except ModelFilesError as error:
        print(f"blade_llm_fetch: {error}", file=sys.stderr)
        _report(FetchReport(model=model, ready=False, message=str(error)))
        return 1
    except KeyboardInterrupt:
        print("blade_llm_fetch: stopped; what has arrived is kept, the same command continues", file=sys.stderr)
        return 130
    sizes = [file.stat().st_size for each in folders for file in model_files(each)]
    print(folder)
    _report(FetchReport(model=model, ready=True, folder=str(folder), files=len(sizes), bytes=sum(sizes)))
    return 0


def _fetch_draft(draft: str, progress: ProgressCallback) -> Path:
    try:
        return resolve_model(draft, progress=progress)
    except ModelFilesError as error:
        raise ModelFilesError(f"--draft.model {draft}: {error}") from None


def _report(report: FetchReport) -> None:
    data = msgspec.json.encode(report)
    if len(data) > TERMINATION_LOG_MAX_BYTES:
        # Names are bounded by the system; only a message can be long. One character is at most six bytes of JSON.
        cut = report.message[: TERMINATION_LOG_MAX_BYTES // 12] + "..."
        data = msgspec.json.encode(msgspec.structs.replace(report, model=report.model[:256], message=cut))
    write_termination_log(data)


if __name__ == "__main__":
    sys.exit(main())
