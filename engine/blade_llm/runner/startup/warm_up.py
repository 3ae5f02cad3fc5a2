"""Pays at the start for what the first requests would otherwise pay for: kernels compiled and loaded, libraries set up.

On a GPU every operator compiles all its variants, and steps of many shapes with every kind of sampling run once, so
that cuBLAS has loaded its kernels too. On CPU there is nothing to compile: one short prefill and decode set torch and
OpenMP up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blade_llm.cache.sizing import BLOCK_SIZE
from blade_llm.runner.startup.dummy_batch import STEPS, VARIETY, DummyBatch, blocks_for
from blade_llm.runner.startup.startable import StartableRunner
from blade_llm.scheduling.plan import StepPlan


def warm_up(runner: StartableRunner, *, every_shape: bool = False) -> None:
    """Run what a runner with KV cache and tables has to have run before the first request.

    ``every_shape``: also steps of many shapes; once a process is enough.
    """
    runner.warm_kernels()
    generates = runner.model_config.decoder.head
    run_dummy_batch(runner, DummyBatch(generates=generates), [[short_prompt(runner)]])
    if not every_shape:
        return
    for counts in _batches(runner.config.max_num_seqs):
        run_dummy_batch(runner, DummyBatch(VARIETY, generates=generates), groups_that_fit(runner, counts))
    for length in _powers(runner.config.max_batch_tokens):
        run_dummy_batch(runner, DummyBatch(VARIETY, generates=generates), groups_that_fit(runner, [[length]]))


def run_dummy_batch(runner: StartableRunner, batch: DummyBatch, entering: Iterable[Sequence[int]]) -> None:
    """Let requests of the given prompt lengths enter, one group a step, while those before them decode; then decode
    all, and free their slots."""
    plans = 0
    for lengths in entering:
        _run(runner, batch.step(lengths, decoding=len(batch.slots) if batch.generates else 0))
        plans += 1
    if batch.generates and plans and plans < STEPS and runner.max_model_len > STEPS:
        _run(runner, batch.step(decoding=len(batch.slots)))
    for slot in batch.slots:
        runner.tables.free(slot)


def short_prompt(runner: StartableRunner) -> int:
    """A length that fits any cache."""
    return max(1, min(BLOCK_SIZE, runner.max_model_len - STEPS))


def groups_that_fit(runner: StartableRunner, groups: Iterable[Sequence[int]]) -> list[Sequence[int]]:
    """Those groups of prompt lengths that the cache, the slots and the budget of ``runner`` hold together."""
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


def _run(runner: StartableRunner, plan: StepPlan) -> None:
    runner.launch_sampling(runner.launch_forward(plan)).result()
