"""An engine process around two further ranks of :mod:`engine_support.fake_ranks`."""

from __future__ import annotations

from engine_support.fake_core import FakeCore
from engine_support.fake_engine import ServerRunner
from engine_support.fake_ranks import MEETS, abort, meet, without_torch

from blade_llm.config import EngineConfig
from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.engine.ranks.processes import RankProcesses
from blade_llm.engine.ranks.runner import RankedRunner
from blade_llm.scheduling.plan import StepPlan


class RankedServerRunner(ServerRunner):
    """Rank 0's runner of a fake engine: a prompt of the token :data:`MEETS` takes it to a collective.

    Its other attributes are those of no device.
    """

    description, dtype_name, device = "cpu", "float32", None
    mixed_graphs, step_seconds, draft = None, None, None

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._model = config.model_dir

    def _apply(self, plan: StepPlan) -> None:
        super()._apply(plan)
        if any(new.token_ids[0] == MEETS for new in plan.new_requests):
            meet(self._model)


def engine(config: EngineConfig) -> EngineCore:
    """``engine_support.fake_ranked_engine:engine``: a core with two more ranks; their process ids are in ``pids``."""
    without_torch()
    ranks = RankProcesses(3, build="engine_support.fake_ranks:recording", socket_dir=config.model_dir)
    ranks.start(config, group="")
    ranks.watch(lambda rank, failure: abort(config.model_dir))
    ranks.wait_ready(60)
    own = RankedServerRunner(config)
    info = EngineInfo(model="fake", max_model_len=own.max_model_len, device="cpu", dtype="float32")
    runner = RankedRunner(own, ranks)  # type: ignore[arg-type] # some attributes say that there is no device
    core = FakeCore.from_config(config, runner, info, num_blocks=own.num_blocks, eos_token_ids=(2,))
    core.ranks = ranks
    (config.model_dir / "pids").write_text(" ".join(map(str, ranks.pids)), encoding="utf-8")
    return core
