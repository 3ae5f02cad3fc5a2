"""What ranks do in tests of collectives and models on the device that they have, a GPU each where there are GPUs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from engine_support import rank_work
from engine_support.runner_driver import Driver
from engine_support.tiny_models import engine_config
from torch import Tensor

from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import rank_model
from blade_llm.parallel.group import RankGroup
from blade_llm.parallel.layout import RankLayout
from blade_llm.parallel.torch_group import TorchGroup
from blade_llm.runner import build_runner


class FromHost:
    """Implements :class:`blade_llm.parallel.group.RankGroup` for tensors of the host, by a group of devices."""

    native = None

    def __init__(self, group: RankGroup, device: torch.device) -> None:
        self.rank, self.size = group.rank, group.size
        self._group, self._device = group, device

    def all_reduce(self, x: Tensor) -> Tensor:
        return x.copy_(self._group.all_reduce(x.to(self._device)))

    def all_gather(self, x: Tensor) -> Tensor:
        return self._group.all_gather(x.to(self._device)).cpu()

    def all_to_all(self, x: Tensor) -> Tensor:
        return self._group.all_to_all(x.to(self._device)).cpu()

    def least(self, value: int) -> int:
        return self._group.least(value)

    def abort(self, lost_rank: int) -> None:
        self._group.abort(lost_rank)

    def close(self) -> None:
        self._group.close()


def from_host(group: RankGroup, device_type: str, work: Callable[..., Any], *args: Any) -> Any:
    """``work`` of :mod:`engine_support.rank_work`, by collectives of this rank's device."""
    device = torch.device("cuda", torch.cuda.current_device()) if device_type == "cuda" else torch.device("cpu")
    return work(FromHost(group, device), *args)


def generated(group: RankGroup, folder: Path, prompts: Sequence[list[int]], count: int) -> tuple[list[list[int]], bool]:
    """Greedy tokens after each of ``prompts``, by a rank of the model in ``folder``; and whether steps are replayed."""
    config = engine_config(
        folder, tensor_parallel_size=group.size, cuda_graph_batch_sizes=(1, 4), cuda_graph_token_sizes=(64,)
    )
    own = rank_model(read_model_config(folder), RankLayout(group.size), group.rank)
    runner = build_runner(config, own, group)
    driver = Driver(runner)
    for slot, prompt in enumerate(prompts):
        driver.enter(slot, prompt)
        driver.step(dict.fromkeys(range(slot), 1) | {slot: len(prompt)})
    driver.decode(list(range(len(prompts))), count)
    tokens = [driver.live[slot].tokens[len(prompt) :] for slot, prompt in enumerate(prompts)]
    return tokens, runner.graphs is not None and runner.mixed_graphs is not None


def own_sums(group: TorchGroup, counts: Sequence[int]) -> tuple[str, list[bytes], list[bytes]]:
    """Which kernels of our own add, their sums in bf16, and those of the same replayed in a CUDA graph."""
    group._open_symmetric_memory()
    assert group._symmetric is not None, "there is none between these GPUs"
    eager, replayed = [], []
    for count in counts:
        numbers = rank_work.numbers(group.rank, count, torch.bfloat16).cuda()
        eager.append(rank_work.bits(group.all_reduce(numbers.clone()).cpu()))
        x = torch.zeros_like(numbers)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            group.all_reduce(x)
            group.all_reduce(x)  # one right after the other, through the same memory
        x.copy_(numbers)
        graph.replay()
        for _ in range(20):
            x.copy_(numbers)
            graph.replay()
        replayed.append(rank_work.bits(x.cpu()))
    return str(group._symmetric.ways), eager, replayed


def freed(group: RankGroup, done: Path) -> str:
    """Rank 1 does not come to a collective in which rank 0 waits on its GPU, until that has been freed of it."""
    x = torch.ones(1 << 20, device="cuda")
    group.all_reduce(x)
    torch.cuda.synchronize()
    if group.rank:
        while not done.exists():
            time.sleep(0.01)
        return "came back"
    threading.Timer(0.5, group.abort, (1,)).start()
    try:
        group.all_reduce(x)
        torch.cuda.synchronize()
    except RuntimeError as error:  # depends on where it was when it was freed
        print(f"{type(error).__name__}: {error}")
    done.touch()
    return "freed"
