"""``blade_llm_benchmark``: put load on any OpenAI server and say how it bears it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Final

import msgspec

from blade_llm.benchmark.errors import BenchmarkError
from blade_llm.benchmark.options import Options
from blade_llm.benchmark.report.charts import charts
from blade_llm.benchmark.report.plot import check_plot_file, write_plot
from blade_llm.benchmark.report.summary import BUSY
from blade_llm.benchmark.report.tables import format_summary
from blade_llm.benchmark.session import Outcome, run_session
from blade_llm.cli.benchmark_flags import GROUPS
from blade_llm.cli.flags import FlagParser
from blade_llm.cli.progress.benchmark import ProgressPrinter

PROGRAM: Final = "blade_llm_benchmark"


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0; 1 when no request succeeded or no rate passed; 130 after Ctrl-C. Wrong flags exit with 2."""
    parser = FlagParser(PROGRAM, "Put load on any OpenAI server and say how it bears it.", GROUPS)
    parser.usage = "%(prog)s [--base_url URL] [--concurrency N | --request_rate RATE] [flags]"
    parser.epilog = (
        "Exit status: 0; 1 when no request succeeded, or with --find_rate no rate passed; 2 for wrong flags; "
        "130 after Ctrl-C."
    )
    flags = parser.parse(argv)
    try:
        options = _options(flags)
        if flags["plot"] is not None:
            check_plot_file(flags["plot"])
    except BenchmarkError as error:
        parser.error(str(error))
    _allow_many_connections()
    try:
        with ProgressPrinter(options) as show:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                outcome = runner.run(run_session(options, show))
        return _report(outcome, options, flags)
    except (BenchmarkError, OSError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{PROGRAM}: stopped before anything was measured", file=sys.stderr)
        return 130


def _report(outcome: Outcome, options: Options, flags: dict[str, Any]) -> int:
    """Print and write what was measured; the exit status."""
    lines = []
    if options.find_rate:
        lines.append("\n" + _verdict(outcome, options))
    if outcome.summary is not None:
        if options.find_rate:
            lines.append("At this rate:" if outcome.best_rate else "At the last rate tried:")
        lines.append(format_summary(outcome.summary))
    report = "\n\n".join(lines)
    if outcome.stopped:
        report = f"Stopped by Ctrl-C; so far:\n\n{report}"
    print(report, flush=True)
    if flags["output"] is not None:
        flags["output"].write_bytes(_json(outcome))
    if flags["plot"] is not None:
        title = f"{outcome.target.model} at {outcome.target.url}"
        write_plot(flags["plot"], charts(outcome.summary, outcome.probes), title, report)
    if outcome.stopped:
        return 130
    if options.find_rate:
        return 0 if outcome.best_rate else 1
    return 0 if outcome.summary is not None and outcome.summary.succeeded else 1


def _verdict(outcome: Outcome, options: Options) -> str:
    kept = f"{', '.join(map(str, options.slo))} for {options.attainment:.0%} of requests"
    if outcome.best_rate is None:
        return f"No rate tried keeps {kept}."
    text = f"Highest rate that keeps {kept}: {outcome.best_rate:.2f} requests/s"
    busy = any(probe.generator_cpu > BUSY for probe in outcome.probes)
    return text + (" (or more: the generator itself was the bottleneck in some probes)" if busy else "")


def _json(outcome: Outcome) -> bytes:
    result = {
        "load": outcome.summary,
        "rates": outcome.probes,
        "highest_rate": outcome.best_rate,
        "stopped": outcome.stopped,
    }
    return msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n"


def _options(flags: dict[str, Any]) -> Options:
    named = {field.name: flags[field.name] for field in fields(Options)}
    named["slo"] = tuple(flags["slo"] or ())
    named["extra_body"] = flags["extra_body"] or {}
    named["api_key"] = flags["api_key"] or os.environ.get("OPENAI_API_KEY")
    return Options(**named)


def _allow_many_connections() -> None:
    """Raise the limit of open files: each request in flight is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    sys.exit(main())
