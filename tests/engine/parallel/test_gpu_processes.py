"""Ranks as processes through torch.distributed, one on one GPU, several on as many: NCCL's collectives are gloo's, and
in CUDA graphs. Without a GPU what can be is done by gloo alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from engine_support import rank_device_work, rank_work
from engine_support.rank_processes import results_of
from engine_support.runner_driver import prompt_of
from engine_support.server_process import gone, running_server
from engine_support.tiny_models import reference_greedy, save_model
from engine_support.tiny_text import CONFIG, write_tokenizer

DEVICE_TYPE = "cuda" if torch.cuda.is_available() else "cpu"
TWO_GPUS = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs, for NCCL has one rank on each"),
]
SIZES = [1, pytest.param(2, marks=TWO_GPUS if DEVICE_TYPE == "cuda" else ())]
FLAGS = "--dtype", "float32", "--kv_cache_bytes", "64MiB", "--max_num_seqs", "8", "--load_format", "auto"
OWN = "--dtype", "bfloat16", "--enable_custom_allreduce"
REQUEST = {"prompt": "What is a block table?", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("work", "args"),
    [
        (rank_work.sums, ((1, 17, 100_003), rank_work.DTYPES)),
        (rank_work.gathered, (5,)),
        (rank_work.exchanged, (5,)),
        (rank_work.leasts, ()),
        (rank_work.many_small_sums, (60,)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_collectives_of_devices_have_the_bits_of_those_of_cpus(
    size: int, work: Callable[..., Any], args: tuple[Any, ...], tmp_path: Path
) -> None:
    expected = results_of(f"file:{tmp_path / 'cpu'}", size, work, *args)
    of_device = rank_device_work.from_host, DEVICE_TYPE, work, *args
    assert results_of(f"file:{tmp_path / 'device'}", size, *of_device, device_type=DEVICE_TYPE) == expected


@pytest.mark.parametrize("size", SIZES)
def test_ranks_generate_what_transformers_generates(size: int, tmp_path: Path) -> None:
    """On GPUs by graphs of decodes and of mixed steps, with the collectives in them."""
    reference, prompts = save_model(tmp_path, "qwen2"), [prompt_of(length, seed=length) for length in (3, 40, 17)]
    found = results_of(
        f"file:{tmp_path / 'store'}", size, rank_device_work.generated, tmp_path, prompts, 8, device_type=DEVICE_TYPE
    )
    assert found == [found[0]] * size
    tokens, replayed = found[0]
    assert replayed == (DEVICE_TYPE == "cuda")
    assert tokens == [
        reference_greedy(reference, prompt, len(own)) for prompt, own in zip(prompts, tokens, strict=True)
    ]
    assert [len(own) for own in tokens] == [11, 10, 9]


def _two_gpus(test: Callable[..., None]) -> Callable[..., None]:
    for mark in TWO_GPUS:
        test = mark(test)
    return test


@_two_gpus
def test_who_waits_on_a_gpu_for_a_rank_that_hangs_can_be_freed(tmp_path: Path) -> None:
    """NCCL's own time-out is longer than the test's."""
    work = rank_device_work.freed, tmp_path / "done"
    assert results_of(f"file:{tmp_path / 'store'}", 2, *work, timeout=600.0, device_type="cuda")[0] == "freed"


@pytest.mark.gpu
@pytest.mark.parametrize("size", [2, 4, 8])
def test_all_reduces_of_our_own_add_what_nccl_adds(size: int, tmp_path: Path) -> None:
    """By one-shot, two-shot or the switch, and in CUDA graphs."""
    if torch.cuda.device_count() < size:
        pytest.skip(f"needs {size} GPUs")
    counts = (8, 896, 8192, (512 << 10) // 2 - 8, (512 << 10) // 2, (4 << 20) // 2)
    first, *others = results_of(
        f"file:{tmp_path / 'store'}", size, rank_device_work.own_sums, counts, device_type="cuda"
    )
    assert others == [first] * (size - 1)
    print(first[0])
    for count, eager, twice in zip(counts, first[1], first[2], strict=True):
        expected = rank_work.total(size, count, torch.bfloat16)
        found, again = (torch.frombuffer(bytearray(each), dtype=torch.bfloat16).float() for each in (eager, twice))
        if size == 2:  # a sum of two is rounded once
            assert eager == rank_work.bits(expected)
        else:
            terms = [rank_work.numbers(rank, count, torch.bfloat16).float().abs() for rank in range(size)]
            assert bool(((found - expected.float()).abs() <= size * 2**-8 * sum(terms)).all())
        assert torch.equal(again, size * found)  # powers of two are exact


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a short name, as the paths of sockets are short."""
    return tmp_path_factory.mktemp("s")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """With weights: random ones that are made on GPUs are others in each stage."""
    save_model(tmp_path / "model", "qwen2", vocab_size=CONFIG["vocab_size"])
    write_tokenizer(tmp_path / "model")
    return tmp_path / "model"


@_two_gpus
@pytest.mark.parametrize("how", ["-tp", "-pp"])
def test_a_server_of_two_gpus_answers_what_one_gpu_answers(how: str, folder: Path, model: Path) -> None:
    texts = []
    for name, flags in (("o", ()), ("t", (how, "2"))):
        with running_server(folder / name, model, *flags, *FLAGS, engine="real") as server:
            texts.append(server.post("/v1/completions", **REQUEST).json()["choices"][0]["text"])
            server.signal(signal.SIGTERM)
            assert server.process.wait(60) == 0
    assert texts[0] == texts[1]


@_two_gpus
def test_all_reduces_of_our_own_change_no_token(folder: Path, model: Path) -> None:
    """Of two ranks in bf16, whose sums are the same in every bit."""
    texts = []
    for name, flags in (("n", ()), ("o", OWN)):
        with running_server(folder / name, model, "-tp", "2", *FLAGS, *OWN[:2], *flags, engine="real") as server:
            texts.append(server.post("/v1/completions", **REQUEST).json()["choices"][0]["text"])
            assert ("all-reduces in bf16: one-shot" in server.output) == bool(flags)
            server.signal(signal.SIGTERM)
            assert server.process.wait(60) == 0
    assert texts[0] == texts[1]


@_two_gpus
@pytest.mark.parametrize("flags", [(), OWN], ids=["nccl", "own"])
def test_a_rank_that_dies_on_its_gpu_ends_the_replica(flags: tuple[str, ...], folder: Path, model: Path) -> None:
    with running_server(folder, model, "-tp", "2", *FLAGS, *flags, engine="real") as server:
        (rank,) = psutil.Process(server.engine_pid).children()
        os.kill(rank.pid, signal.SIGKILL)
        assert server.process.wait(60) == 1
        [failure] = [line for line in server.output.splitlines() if "the engine failed" in line]
        assert "rank 1" in failure
        assert gone(server.engine_pid)
