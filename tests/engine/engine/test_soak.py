"""Random load on the real engine core with a small model, for ``SOAK_SECONDS`` (30 minutes under ``make soak``).

Memory must stay flat, every block and slot must come back, and outputs must be what they are alone. The fast version
runs the same for a few seconds and leaves out what needs time: the memory.
"""

from __future__ import annotations

import gc
import os
import random
import time
from pathlib import Path

import pytest
from engine_support.async_device import AsyncDevice
from engine_support.fake_core import core_of
from engine_support.load import SHARED
from engine_support.sched_invariants import check_invariants
from engine_support.tiny_models import engine_config, save_model

from blade_llm.engine.core import EngineCore
from blade_llm.runner import build_runner
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.request import Request

SOAK_SECONDS = float(os.environ.get("SOAK_SECONDS", "1800"))
SLOTS, BLOCKS, MAX_MODEL_LEN, EOS = 8, 48, 320, 1
GROWTH_MB = 16
"""Resident memory may grow by so much in the second half of the time: noise of allocators, not a leak."""

# oneDNN remembers code for the last 1024 shapes it met. That is no leak, but filling it takes longer than a soak.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16")


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> TorchRunner:
    folder: Path = tmp_path_factory.mktemp("qwen2")
    save_model(folder, "qwen2")
    return build_runner(
        engine_config(
            folder, max_num_seqs=SLOTS, max_model_len=MAX_MODEL_LEN, max_batch_tokens=128, max_kv_blocks=BLOCKS
        )
    )


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def resident_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Crowd:
    """Requests that come and go at random; some are sent again later, and must get the same output."""

    def __init__(self, core: EngineCore, seed: int = 0) -> None:
        self.core = core
        self.random = random.Random(seed)
        self.live: dict[str, list[int]] = {}
        self.numbers: dict[str, int] = {}
        """Request → the number of its prompt."""
        self.outputs: dict[int, list[int]] = {}
        self.count = self.finished = self.repeated = self.aborted = 0

    def prompt_and_sampling(self, number: int) -> tuple[list[int], SamplingParams]:
        """The same for the same number."""
        chance = random.Random(number)
        prompt = SHARED[: chance.randrange(150)] + [chance.randrange(2, 199) for _ in range(chance.randrange(1, 60))]
        sampling = SamplingParams(
            max_tokens=chance.randrange(1, 90),
            min_tokens=0,
            temperature=chance.choice([0.0, 0.7, 1.0]),
            top_p=chance.choice([1.0, 0.8]),
            top_k=chance.choice([0, 20]),
            repetition_penalty=chance.choice([1.0, 1.0, 1.2]),
            logprobs=chance.choice([None, None, 3]),
            stop_token_ids=chance.choice([(), (5, 17)]),
            ignore_eos=chance.random() < 0.5,
            seed=number,
        )
        return prompt, sampling

    def come(self) -> None:
        number = self.random.randrange(200)
        prompt, sampling = self.prompt_and_sampling(number)
        name = str(self.count)
        self.count += 1
        self.core.scheduler.add(Request(name, prompt, sampling, priority=self.random.choice([0, 0, 1])))
        self.live[name] = []
        self.numbers[name] = number

    def leave(self) -> None:
        name = self.random.choice(sorted(self.live))
        self.core.abort([name])
        del self.live[name], self.numbers[name]
        self.aborted += 1

    def step(self) -> None:
        for output in self.core.step():
            tokens = self.live[output.request_id]
            tokens += output.token_ids
            if output.finish_reason is None:
                continue
            del self.live[output.request_id]
            number = self.numbers.pop(output.request_id)
            if number in self.outputs:
                assert tokens == self.outputs[number], f"prompt {number} has another output than before"
                self.repeated += 1
            self.outputs[number] = tokens
            self.finished += 1

    def run(self, seconds: float) -> list[float]:
        """Quiet and crowded times in turn; resident memory, in MB, at the end of each quiet time."""
        memory = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            crowd = self.random.randrange(1, 3 * SLOTS)
            for _ in range(self.random.randrange(50, 250)):
                if len(self.live) < crowd and self.random.random() < 0.5:
                    self.come()
                if self.live and self.random.random() < 0.02:
                    self.leave()
                self.step()
                check_invariants(self.core.scheduler)
            while self.core.has_work:
                self.step()
            assert not self.live
            assert self.core.scheduler.stats().kv_blocks_free == BLOCKS, "blocks leaked"
            gc.collect()
            memory.append(resident_mb())
        return memory


def crowd_on(runner: TorchRunner, *, overlap: bool) -> Crowd:
    device = AsyncDevice(runner, record=False) if overlap else runner
    core = core_of(
        device,
        num_blocks=BLOCKS,
        max_num_seqs=SLOTS,
        max_model_len=MAX_MODEL_LEN,
        max_batch_tokens=128,
        eos_token_ids=(EOS,),
        overlap=overlap,
    )
    return Crowd(core)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_short_crowd(runner: TorchRunner, overlap: bool) -> None:
    crowd = crowd_on(runner, overlap=overlap)
    crowd.run(2.0)
    assert crowd.finished > crowd.aborted > 0


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 600)
def test_memory_stays_flat_and_no_block_leaks(runner: TorchRunner) -> None:
    crowd = crowd_on(runner, overlap=True)
    memory = crowd.run(SOAK_SECONDS)
    warm = memory[len(memory) // 2 :]
    third = max(1, len(warm) // 3)
    growth = mean(warm[-third:]) - mean(warm[:third])
    stats = crowd.core.scheduler.stats()
    print(
        f"{crowd.finished} outputs, {crowd.repeated} of them for prompts sent before, {crowd.aborted} aborts, "
        f"{stats.preemptions_total} preemptions, {stats.generation_tokens_total} tokens; "
        f"resident memory grew by {growth:.1f} MB from {warm[0]:.0f} MB"
    )
    assert stats.preemptions_total > 0
    assert crowd.repeated > 0
    assert growth < GROWTH_MB
