"""All-reduces between two ranks on this host: in shared memory beside gloo over sockets.

Run it as ``python -m benchmarks.engine.collectives [--threads N]``. The messages are what a layer of Qwen2.5-0.5B adds
up of one token and of a prefill of 2,048. Both ways take turns in the same two processes, a hundred messages or a few
each time. What is reported is the median of the fastest turn, as the slower rank has it: what a quiet machine would do.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch

from benchmarks.figures import QUICK, Figure, report
from blade_llm.parallel.build import join_group
from blade_llm.parallel.group import RankGroup
from blade_llm.parallel.shared_memory import create_segment

HIDDEN = 896
TOKENS = {1: 100, 2048: 4}
"""With how many messages a turn has."""
TURNS = 5 if QUICK else 50
WAYS = ("shared_memory", "gloo")


def measure(group: RankGroup, tokens: int, messages: int) -> list[float]:
    """Seconds of each all-reduce, the two ranks starting together."""
    x = torch.ones(tokens * HIDDEN, dtype=torch.bfloat16)
    group.least(0)
    seconds = []
    for _ in range(messages):
        x.fill_(1.0)
        start = time.perf_counter()
        group.all_reduce(x)
        seconds.append(time.perf_counter() - start)
        assert x[-1] == group.size
    return seconds


def rank_main(connection: Connection, addresses: dict[str, str], rank: int, threads: int) -> None:
    """Send the median of the fastest turn by way and tokens."""
    torch.set_num_threads(threads)
    groups = {way: join_group(address, rank, 2, "cpu") for way, address in addresses.items()}
    seconds: dict[tuple[str, int], list[float]] = {(way, tokens): [] for way in groups for tokens in TOKENS}
    for turn in range(-1, TURNS):
        for (way, tokens), found in seconds.items():
            measured = measure(groups[way], tokens, TOKENS[tokens])
            if turn >= 0:  # the first one warms up
                found.append(median(measured))
    connection.send({key: min(found) for key, found in seconds.items()})
    for group in groups.values():
        group.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=max(1, torch.get_num_threads() // 2), help="of each rank")
    threads = parser.parse_args().threads
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        addresses = {"shared_memory": f"shm:{create_segment(2)}", "gloo": f"file:{Path(folder) / 'store'}"}
        ranks = []
        for rank in range(2):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=rank_main, args=(theirs, addresses, rank, threads))
            process.start()
            theirs.close()
            ranks.append((ours, process))
        measured = [connection.recv() for connection, _ in ranks]
        for _, process in ranks:
            process.join()
    seconds = {key: max(each[key] for each in measured) for key in measured[0]}
    figures = []
    for tokens in TOKENS:
        figures += [Figure(f"all_reduce_{tokens}_{way}", seconds[way, tokens] * 1e6, "us") for way in WAYS]
        ratio = seconds["gloo", tokens] / seconds["shared_memory", tokens]
        figures.append(Figure(f"all_reduce_{tokens}_vs_gloo", ratio, "x", ">=", 1.0))
    return report("collectives", figures, threads=str(threads))


if __name__ == "__main__":
    sys.exit(main())
