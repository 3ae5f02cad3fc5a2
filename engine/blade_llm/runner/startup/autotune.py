"""Settings that no specification of a CPU gives: they are measured at the first start on a machine, and cached."""

from __future__ import annotations

import hashlib
import time
from functools import partial

import torch

from blade_llm.kernels.linear import native as linear
from blade_llm.kernels.native.build import source_hash
from blade_llm.parallel.group import RankGroup
from blade_llm.parallel.link import StageLink, least_of_ranks
from blade_llm.runner.startup.autotune_cache import cached_measurement
from blade_llm.runner.startup.dummy_batch import DummyBatch
from blade_llm.runner.startup.startable import StartableRunner
from blade_llm.runner.startup.threads import SHORT_STEP_SECONDS, requested_threads
from blade_llm.runner.startup.warm_up import run_dummy_batch, short_prompt


def autotune_linear(runner: StartableRunner, group: RankGroup | None = None, link: StageLink | None = None) -> None:
    """Choose how far ahead the CPU's linear layers prefetch weights, for each kind of weights where that matters, and
    whether quantised weights are multiplied as integers by any number of rows.

    Both are measured at the first start on a machine, and cached. Integers round otherwise, and each rank computes the
    whole of a draft model, so all ranks multiply in the same way: as integers where that is faster for all of them.
    """
    if runner.device.type != "cpu" or runner.dtype_name != "bfloat16":
        return
    for kind in linear.kinds_in_use():
        if linear.prefetch_matters(kind):
            name = f"prefetch of weights, bytes, {kind}, kernels {source_hash()}"
            linear.set_prefetch(kind, int(cached_measurement(name, partial(linear.measure_prefetch, kind))))
    always = True
    if linear.integers_matter():
        name = f"quantised weights as integers, kernels {source_hash()}"
        always = bool(cached_measurement(name, linear.measure_integers))
    always = bool(least_of_ranks(group, link, always))
    if linear.integers_matter():
        linear.set_always_integers(always)


def autotune_threads(runner: StartableRunner) -> None:
    """Keep to one thread where nobody says how many and the model is too small for the CPU to share its work.

    What a dummy batch takes on one thread is measured at the first start of a model on a machine, and cached.
    """
    config, threads = runner.config, torch.get_num_threads()
    if runner.device.type != "cpu" or config.num_ranks > 1 or requested_threads(config.num_threads) or threads == 1:
        return

    def one_thread() -> float:
        torch.set_num_threads(1)
        try:
            return min(_dummy_batch_seconds(runner) for _ in range(2))
        finally:
            torch.set_num_threads(threads)

    shape = (runner.model_config, runner.dtype_name, config.quant)
    digest = hashlib.sha256(repr(shape).encode()).hexdigest()[:16]
    if cached_measurement(f"dummy batch on one thread, seconds, {digest}", one_thread) <= SHORT_STEP_SECONDS:
        torch.set_num_threads(1)


def _dummy_batch_seconds(runner: StartableRunner) -> float:
    start = time.perf_counter()
    run_dummy_batch(runner, DummyBatch(generates=runner.model_config.decoder.head), [[short_prompt(runner)]])
    return time.perf_counter() - start
