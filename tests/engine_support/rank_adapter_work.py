"""What ranks with adapters do in processes of their own; results are bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from engine_support.rank_work import bits
from engine_support.runner_driver import Driver
from engine_support.tiny_models import engine_config

from blade_llm.kernels.decoder_layers.native import MLP_TOKENS
from blade_llm.layers.vocabulary import gather_logits
from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import shard_model
from blade_llm.parallel.group import RankGroup
from blade_llm.runner.torch_runner import TorchRunner

LONG = MLP_TOKENS + 40
"""More tokens than an MLP takes at once."""


def layers_together_and_apart(group: RankGroup, folder: Path, adapter: Path) -> tuple[list[bytes], list[bytes]]:
    """Logits of steps in bf16 with an adapter for every other request: all layers in one call, and one by one."""
    config = engine_config(
        folder, dtype="bfloat16", enable_lora=True, max_batch_tokens=1024, tensor_parallel_size=group.size
    )
    part = shard_model(read_model_config(folder), group.rank, group.size)
    found = []
    for together in (True, False):
        runner = TorchRunner(config, part, group=group)
        assert runner.model.fused is not None
        if not together:
            cast("Any", runner.model).fused = None
        found.append(_logits(runner, adapter))
    return found[0], found[1]


def _logits(runner: TorchRunner, adapter: Path) -> list[bytes]:
    driver, seen = Driver(runner), []
    assert runner.adapters is not None
    driver.place_adapter(1, runner.adapters.reader().read(adapter))
    generator = torch.Generator().manual_seed(3)
    for slot, length in enumerate((1, 37, 70, LONG)):
        driver.adapter = slot % 2
        driver.enter(slot, torch.randint(2, 199, (length,), generator=generator).tolist())
    for counts in ({0: 1, 1: 37, 2: 30}, {2: 40, 0: 1, 1: 1}, {3: LONG, 0: 1}, {3: 1, 2: 1, 1: 1, 0: 1}):
        driver.logits = {}
        driver.step(counts)
        for slot in sorted(driver.logits):
            part, vocabulary = driver.logits[slot].unsqueeze(0), runner.model_config.vocab_size
            seen.append(bits(part if runner.group is None else gather_logits(part, vocabulary, runner.group)))
    return seen
