"""How a rank finds the others: by an address that all of them are started with."""

from __future__ import annotations

from pathlib import Path

from blade_llm.parallel.group import RankGroup
from blade_llm.parallel.layout import RankLayout
from blade_llm.parallel.link import StageLink
from blade_llm.parallel.shared_memory import SharedMemoryGroup, is_available


def join_ranks(
    address: str, layout: RankLayout, rank: int, device_type: str, timeout: float = 60.0, session_key: str = ""
) -> tuple[RankGroup | None, StageLink | None]:
    """The ranks of the stage of rank ``rank``, None where it is the only one, and the link to the stages before and
    after, None where there is one stage.

    ``address``: of one stage as :func:`join_group` has it; of several ``shm:FOLDER`` or ``file:FOLDER``, a folder of
    this host that is private to the ranks, or on several machines ``tcp://host:port`` of rank 0. ``session_key``: on
    several machines the secret key (CURVE, in Z85) that lets ranks in. The rest, and what is raised, is as there.
    """
    if layout.pipeline == 1:
        return join_group(address, rank, layout.size, device_type, timeout), None
    if layout.nodes > 1:
        from blade_llm.parallel.machines import join_stages

        return join_stages(address, layout, rank, device_type, timeout, session_key, join_group)
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


def join_group(address: str, rank: int, size: int, device_type: str, timeout: float = 60.0) -> RankGroup:
    """The group at ``address``.

    ``address``: ``shm:PATH`` of :func:`~blade_llm.parallel.shared_memory.create_segment`, for CPUs of one host with
    native operators; else ``file:PATH`` of a file that is not there yet, or ``tcp://host:port`` of rank 0.
    ``device_type``: cpu or cuda. ``timeout``: seconds that a collective waits for the others.

    Raises ValueError for an address that cannot serve, RankLostError where the others do not come, CollectiveError for
    a segment of others.
    """
    kind, separator, place = address.partition(":")
    if not separator or kind not in ("shm", "file", "tcp"):
        raise ValueError(f"ranks meet at shm:PATH, file:PATH or tcp://host:port, not at {address!r}")
    if kind == "shm":
        if device_type != "cpu" or not is_available():
            raise ValueError(f"ranks at {address} need CPUs and native operators")
        return SharedMemoryGroup(Path(place), rank, size, timeout)
    from blade_llm.parallel.torch_group import TorchGroup

    init_method = address if kind == "tcp" else f"file://{Path(place).absolute()}"
    return TorchGroup(init_method, rank, size, device_type, timeout)
