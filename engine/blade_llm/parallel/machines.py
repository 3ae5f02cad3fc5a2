"""How ranks of a pipeline on several machines meet: each says in a store of rank 0 where it listens.

A stage that lies within one machine has its collectives there, in shared memory where that is possible; only states of
tokens cross the network, once a step.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from torch._C._distributed_c10d import TCPStore  # torch.distributed has it, and mypy does not see it there

from blade_llm.parallel.build import join_group
from blade_llm.parallel.group import RankGroup, RankLostError
from blade_llm.parallel.layout import RankLayout
from blade_llm.parallel.route import free_port, own_address
from blade_llm.parallel.shared_memory import MAX_RANKS, create_segment, is_available
from blade_llm.parallel.socket_link import SocketLink


def join_stages(
    address: str,
    layout: RankLayout,
    rank: int,
    device_type: str,
    timeout: float,
    session_key: str,
    *,
    custom_allreduce: bool = False,
) -> tuple[RankGroup | None, SocketLink]:
    """See :func:`~blade_llm.parallel.ranks.join_ranks`, for several stages on several machines.

    ``address``: ``tcp://host:port``, where rank 0 opens the store. Raises
    :class:`~blade_llm.parallel.group.RankLostError` where others do not come in time.
    """
    place = urlsplit(address)
    assert place.hostname is not None
    assert place.port is not None
    own = own_address(place.hostname, place.port)
    if own is None:
        raise RankLostError(f"rank {rank} has no route to rank 0 at {address}")
    host = f"[{own}]" if own.version == 6 else str(own)
    try:
        store = TCPStore(
            place.hostname, place.port, layout.size, rank == 0, timedelta(seconds=timeout), wait_for_workers=False
        )
        group: RankGroup | None = None
        if layout.tensor > 1:
            group = _join_stage(store, layout, rank, device_type, timeout, host, custom_allreduce)
        listen = f"tcp://{host}:{free_port()}"
        store.set(f"link-{rank}", listen)
        following = store.get(f"link-{(rank + layout.tensor) % layout.size}").decode()
        stage = layout.stage_of(rank)
        link = SocketLink(listen, following, stage, layout.pipeline, timeout, session_key)
        store.set(f"joined-{rank}", "")
        if rank == 0:  # the store ends with it
            store.wait([f"joined-{each}" for each in range(layout.size)])
    except RuntimeError as error:
        raise error if isinstance(error, RankLostError) else RankLostError(f"another rank is lost: {error}") from error
    return group, link


def _join_stage(
    store: TCPStore,
    layout: RankLayout,
    rank: int,
    device_type: str,
    timeout: float,
    host: str,
    custom_allreduce: bool,
) -> RankGroup:
    """The group of the rank's stage, at the place that its first rank chooses."""
    stage, number = layout.stage_of(rank), layout.tensor_rank_of(rank)
    ranks = layout.ranks_of_stage(stage)
    segment: Path | None = None
    if number == 0:
        together = layout.node_of(ranks[0]) == layout.node_of(ranks[-1])
        if together and device_type == "cpu" and is_available() and layout.tensor <= MAX_RANKS:
            segment = create_segment(layout.tensor)
        store.set(f"stage-{stage}", f"tcp://{host}:{free_port()}" if segment is None else f"shm:{segment}")
    try:
        place = store.get(f"stage-{stage}").decode()
        group = join_group(place, number, layout.tensor, device_type, timeout, custom_allreduce=custom_allreduce)
        store.set(f"of-stage-{rank}", "")
        if number == 0:
            store.wait([f"of-stage-{each}" for each in ranks])
        return group
    finally:
        if segment is not None:
            segment.unlink(missing_ok=True)
