"""How a rank finds the others: by an address that all of them are started with."""

from __future__ import annotations

from pathlib import Path

from blade_llm.parallel.group import RankGroup
from blade_llm.parallel.shared_memory import SharedMemoryGroup, is_available


def join_group(
    address: str,
    rank: int,
    size: int,
    device_type: str,
    timeout: float = 60.0,
    *,
    custom_allreduce: bool = False,
) -> RankGroup:
    """The group at ``address``.

    ``address``: ``shm:PATH`` of :func:`~blade_llm.parallel.shared_memory.create_segment`, for CPUs of one host with
    native operators; else ``file:PATH`` of a file that is not there yet, or ``tcp://host:port`` of rank 0.
    ``device_type``: cpu or cuda. ``timeout``: seconds that a collective waits for the others. ``custom_allreduce``: see
    :class:`~blade_llm.parallel.torch_group.TorchGroup`.

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
    return TorchGroup(init_method, rank, size, device_type, timeout, custom_allreduce=custom_allreduce)
