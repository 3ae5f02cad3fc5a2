"""Everything a request can set at once, computed by ranks in little memory: each gets what one rank gives it."""

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
    save_model(folder, "qwen2")
    return folder


@pytest.fixture(scope="module")
def of_one_rank(folder: Path) -> dict[str, Result]:
    return run(core_for(engine_config(folder, max_num_seqs=24, max_model_len=256)), REQUESTS, stagger=1)


@pytest.mark.parametrize("blocks", [None, 32], ids=["room", "preempting"])
@pytest.mark.parametrize("size", [2, 4])
def test_tokens_are_those_of_one_rank(
    folder: Path, of_one_rank: dict[str, Result], size: int, blocks: int | None
) -> None:
    config = engine_config(folder, max_num_seqs=24, max_model_len=256, max_kv_blocks=blocks, tensor_parallel_size=size)
    ranks = ThreadRanks(config)
    core = core_for(config, ranks)  # type: ignore[arg-type]
    together = run(core, REQUESTS, stagger=1)
    assert (core.state(epoch="", sequence=0, draining=False).preemptions_total > 0) == (blocks is not None)
    assert together.keys() == of_one_rank.keys()
    for name, result in together.items():
        check_equal(result, of_one_rank[name])
    assert len({group.reduced for group in ranks.groups}) == 1
