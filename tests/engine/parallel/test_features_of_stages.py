"""Everything a request can set at once, computed by stages with several steps in flight: each gets what one device
gives it."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_support.feature_load import Result, check_equal, core_for, requests_of, run
from engine_support.thread_ranks import ThreadRanks
from engine_support.tiny_models import engine_config, save_model

REQUESTS = requests_of(24)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("qwen2")
    save_model(folder, "qwen2", num_hidden_layers=3)
    return folder


@pytest.fixture(scope="module")
def of_one_device(folder: Path) -> dict[str, Result]:
    return run(core_for(engine_config(folder, max_num_seqs=24, max_model_len=256)), REQUESTS, stagger=1)


@pytest.mark.parametrize("blocks", [None, 20], ids=["room", "preempting"])
@pytest.mark.parametrize(("size", "stages", "batches"), [(1, 2, None), (1, 3, None), (2, 2, None), (1, 2, 4)])
def test_tokens_are_those_of_one_device(
    folder: Path,
    of_one_device: dict[str, Result],
    size: int,
    stages: int,
    batches: int | None,
    blocks: int | None,
) -> None:
    config = engine_config(
        folder,
        max_num_seqs=24,
        max_model_len=256,
        max_kv_blocks=blocks,
        tensor_parallel_size=size,
        pipeline_parallel_size=stages,
        pipeline_micro_batch=batches,
    )
    core = core_for(config, ThreadRanks(config))  # type: ignore[arg-type]
    together = run(core, REQUESTS, stagger=1)
    assert (core.state(epoch="", sequence=0, draining=False).preemptions_total > 0) == (blocks is not None)
    assert together.keys() == of_one_device.keys()
    for name, result in together.items():
        check_equal(result, of_one_device[name])
