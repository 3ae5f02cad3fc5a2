"""The router beside its peers: what it costs, how it places prompts, and what clients notice when engines fail.

Router on one CPU; mock engines and load generator in this process, on another. Routers are measured in turn, round by
round; reported are each one's best round, and the median over the rounds of ours divided by a peer's. Every response is
checked. The method is that of the field's measurements of 2026; CPU time per request is the robust figure, rates are
bounded by the generator.

    python -m benchmarks.router        QUICK=1: a short run · ROWS=latency,prefix (nothing is written then)
                                       PEERS=none or sglang,smg,vllm · ROUTER_PYTHON=/usr/bin/python3
"""

import asyncio
import gc
import os
import resource
import subprocess
import sys
import traceback

import uvloop

from benchmarks.figures import Figure, report
from benchmarks.router.rounds import Context
from benchmarks.router.routers import LOAD_CPU, PEERS, PYTHON, Skipped, available
from benchmarks.router.rows import ROWS

OPEN_FILES = 20_000


def chosen(variable: str, known: tuple[str, ...]) -> list[str]:
    """The names in an environment variable; all of them when it is not set."""
    text = os.environ.get(variable, "")
    names = [] if text == "none" else [name.strip() for name in text.split(",") if text] or list(known)
    unknown = set(names) - set(known)
    if unknown:
        sys.exit(f"{variable}: unknown {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


async def measure(rows: list[str], peers: list[str]) -> list[Figure]:
    """All figures of these rows; each is printed as soon as it is there."""
    context = Context(peers)
    figures: list[Figure] = []
    for name in rows:
        print(f"row {name}", flush=True)
        gc.collect()
        try:
            made = await ROWS[name](context)
        except Skipped as reason:
            print(f"skipped: {name}: {reason}", flush=True)
            continue
        except Exception:
            traceback.print_exc()
            made = [Figure(f"{name}_failed", 1, "runs", "<=", 0)]
        print(*made, sep="\n", flush=True)
        figures += made
    return figures


def main() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))
    rows = chosen("ROWS", tuple(ROWS))
    peers = available(chosen("PEERS", PEERS))
    version = subprocess.run([PYTHON, "-VV"], check=True, capture_output=True, text=True).stdout.strip()
    print(f"ours runs on {version}: {PYTHON}")
    os.sched_setaffinity(0, {LOAD_CPU})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(measure(rows, peers))
    if rows != list(ROWS):  # a part must not replace the whole
        return 0 if all(figure.reached for figure in figures) else 1
    print("\nall figures:")
    return report("router", figures, router_python=version)


if __name__ == "__main__":
    sys.exit(main())
