"""Pays at the start for what the first requests would otherwise pay for: kernels compiled and loaded, libraries set up.

On a GPU every operator compiles all its variants, and steps of many shapes with every kind of sampling run once, so
that cuBLAS has loaded its kernels too. On CPU there is nothing to compile: one short prefill and decode set torch and
OpenMP up.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from blade_llm.kernels.linear import native as linear
from blade_llm.kernels.native.build import source_hash
from blade_llm.models.memory import BLOCK_SIZE
from blade_llm.runner.machine import remembered
from blade_llm.runner.probe import STEPS, VARIETY, Probe, blocks_for
from blade_llm.runner.threads import SHORT_PROBE_SECONDS
from blade_llm.scheduling.plan import StepPlan

if TYPE_CHECKING:
    from blade_llm.runner.torch_runner import TorchRunner


def warm_up(runner: TorchRunner, *, every_shape: bool = False) -> None:
    """Run what a runner with KV cache and tables has to have run before the first request.

    ``every_shape``: also steps of many shapes; once a process is enough.
    """
    runner.warm_kernels()
    run_probe(runner, Probe(), [[short_prompt(runner)]])
    if not every_shape:
        return
    for counts in _batches(runner.config.max_num_seqs):
        run_probe(runner, Probe(VARIETY), fitting(runner, counts))
    for length in _powers(runner.config.max_batch_tokens):
        run_probe(runner, Probe(VARIETY), fitting(runner, [[length]]))


def settle_prefetch(runner: TorchRunner) -> None:
    """On a CPU whose linear layers fetch weights at a distance that no instruction set tells, use the best one.

    It is measured at the first start on a machine and remembered.
    """
    quant = runner.config.quant
    if runner.dtype_name == "bfloat16" and linear.prefetch_matters(quant):
        name = f"prefetch of weights, bytes, {quant}, kernels {source_hash()}"
        linear.set_prefetch(int(remembered(name, lambda: linear.measure_prefetch(quant))))


def settle_threads(runner: TorchRunner) -> None:
    """On CPU, stay with one thread where the model is too small to share.

    What a probe takes on one thread is measured at the first start of a model on a machine and remembered.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        return

    def one_thread() -> float:
        torch.set_num_threads(1)
        try:
            return min(_probe_seconds(runner) for _ in range(2))
        finally:
            torch.set_num_threads(threads)

    shape = (runner.model_config, runner.dtype_name, runner.config.quant)
    digest = hashlib.sha256(repr(shape).encode()).hexdigest()[:16]
    if remembered(f"probe on one thread, seconds, {digest}", one_thread) <= SHORT_PROBE_SECONDS:
        torch.set_num_threads(1)


def _probe_seconds(runner: TorchRunner) -> float:
    start = time.perf_counter()
    run_probe(runner, Probe(), [[short_prompt(runner)]])
    return time.perf_counter() - start


def run_probe(runner: TorchRunner, probe: Probe, entering: Iterable[Sequence[int]]) -> None:
    """Let requests of the given prompt lengths enter, one group a step, while those before them decode; then decode
    all, and free their rows."""
    plans = 0
    for lengths in entering:
        _run(runner, probe.step(lengths, decoding=len(probe.rows)))
        plans += 1
    if plans and plans < STEPS and runner.max_model_len > STEPS:
        _run(runner, probe.step(decoding=len(probe.rows)))
    for row in probe.rows:
        runner.tables.leave(row)


def short_prompt(runner: TorchRunner) -> int:
    """A length that fits any cache."""
    return max(1, min(BLOCK_SIZE, runner.max_model_len - STEPS))


def fitting(runner: TorchRunner, groups: Iterable[Sequence[int]]) -> list[Sequence[int]]:
    """Those groups of prompt lengths that the cache, the rows and the budget of ``runner`` hold together."""
    kept: list[Sequence[int]] = []
    lengths: list[int] = []
    for group in groups:
        whole = [*lengths, *group]
        if (
            max(group) <= runner.max_model_len - STEPS
            and blocks_for(whole) <= runner.num_blocks
            and len(whole) <= runner.config.max_num_seqs
            and len(lengths) + sum(group) <= runner.config.max_batch_tokens
        ):
            kept.append(group)
            lengths = whole
    return kept


def _batches(most: int) -> Iterable[list[list[int]]]:
    """Groups of short prompts: each size of batch is prefilled, decoded, and once mixed with a prefill."""
    for count in _powers(most):
        yield [[5] * (count - 1), [7]] if count > 1 else [[5]]


def _powers(most: int) -> list[int]:
    """Powers of two, each with its neighbours, up to ``most``: kernels and libraries choose their variants there."""
    sizes = {most}
    power = 1
    while power <= most:
        sizes |= {power - 1, power, power + 1}
        power *= 2
    return sorted(size for size in sizes if 1 <= size <= most)


def _run(runner: TorchRunner, plan: StepPlan) -> None:
    runner.launch_sampling(runner.launch_forward(plan)).result()
