"""How a rank finds those of its stage, and the stages before and after, by one address for all of them."""

from __future__ import annotations

import logging
from pathlib import Path

from blade_llm.parallel.build import join_group
from blade_llm.parallel.group import RankGroup
from blade_llm.parallel.layout import RankLayout
from blade_llm.parallel.link import StageLink
from blade_llm.parallel.symmetric_memory import NO_CUSTOM_ALLREDUCE

logger = logging.getLogger(__name__)


def join_ranks(
    address: str,
    layout: RankLayout,
    rank: int,
    device_type: str,
    timeout: float = 60.0,
    session_key: str = "",
    *,
    custom_allreduce: bool = False,
) -> tuple[RankGroup | None, StageLink | None]:
    """The ranks of the stage of rank ``rank``, None where it is the only one, and the link to the stages before and
    after, None where there is one stage.

    ``address``: of one stage as :func:`~blade_llm.parallel.build.join_group` has it; of several ``shm:FOLDER`` or
    ``file:FOLDER``, a folder of this host that is private to the ranks, or on several machines ``tcp://host:port`` of
    rank 0. ``session_key``: on several machines see :mod:`blade_llm.parallel.session_key`. ``custom_allreduce`` changes
    nothing where the ranks of a stage are on several. The rest, and what is raised, is as there.
    """
    stage = layout.stage_of(rank)
    if custom_allreduce and len({layout.node_of(each) for each in layout.ranks_of_stage(stage)}) > 1:
        custom_allreduce = False
        if rank == 0:
            logger.warning("%s: the ranks of a layer are on several machines", NO_CUSTOM_ALLREDUCE)
    if layout.pipeline == 1:
        group = join_group(address, rank, layout.size, device_type, timeout, custom_allreduce=custom_allreduce)
        return group, None
    if layout.nodes > 1:
        from blade_llm.parallel.machines import join_stages

        return join_stages(address, layout, rank, device_type, timeout, session_key, custom_allreduce=custom_allreduce)
    from blade_llm.parallel.socket_link import SocketLink

    kind, _, folder = address.partition(":")
    stage_group: RankGroup | None = None
    if layout.tensor > 1:
        place = f"{kind}:{stage_place(Path(folder), stage)}"
        of_stage = layout.tensor_rank_of(rank), layout.tensor
        stage_group = join_group(place, *of_stage, device_type, timeout, custom_allreduce=custom_allreduce)
    following = (rank + layout.tensor) % layout.size
    listen, to = (f"ipc://{folder}/rank-{each}" for each in (rank, following))
    return stage_group, SocketLink(listen, to, stage, layout.pipeline, timeout)


def stage_place(folder: Path, stage: int) -> Path:
    """Where in the folder of :func:`join_ranks` the ranks of a stage meet."""
    return folder / f"stage-{stage}"
