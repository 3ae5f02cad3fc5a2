"""How a rank finds those of its stage, and the stages before and after, by one address for all of them."""

from __future__ import annotations

from pathlib import Path

from blade_llm.parallel.build import join_group
from blade_llm.parallel.group import RankGroup
from blade_llm.parallel.layout import RankLayout
from blade_llm.parallel.link import StageLink


def join_ranks(
    address: str, layout: RankLayout, rank: int, device_type: str, timeout: float = 60.0, session_key: str = ""
) -> tuple[RankGroup | None, StageLink | None]:
    """The ranks of the stage of rank ``rank``, None where it is the only one, and the link to the stages before and
    after, None where there is one stage.

    ``address``: of one stage as :func:`~blade_llm.parallel.build.join_group` has it; of several ``shm:FOLDER`` or
    ``file:FOLDER``, a folder of this host that is private to the ranks, or on several machines ``tcp://host:port`` of
    rank 0. ``session_key``: on several machines see :mod:`blade_llm.parallel.session_key`. The rest, and what is
    raised, is as there.
    """
    if layout.pipeline == 1:
        return join_group(address, rank, layout.size, device_type, timeout), None
    if layout.nodes > 1:
        from blade_llm.parallel.machines import join_stages

        return join_stages(address, layout, rank, device_type, timeout, session_key)
    from blade_llm.parallel.socket_link import SocketLink

    kind, _, folder = address.partition(":")
    stage, group = layout.stage_of(rank), None
    if layout.tensor > 1:
        place = f"{kind}:{stage_place(Path(folder), stage)}"
        group = join_group(place, layout.tensor_rank_of(rank), layout.tensor, device_type, timeout)
    following = (rank + layout.tensor) % layout.size
    listen, to = (f"ipc://{folder}/rank-{each}" for each in (rank, following))
    return group, SocketLink(listen, to, stage, layout.pipeline, timeout)


def stage_place(folder: Path, stage: int) -> Path:
    """Where in the folder of :func:`join_ranks` the ranks of a stage meet."""
    return folder / f"stage-{stage}"
