"""The items about several machines, as one of them runs them."""

from __future__ import annotations

import asyncio
import secrets
import socket
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from blade_llm.check.ranks.all_reduce import Measured, Task, measure
from blade_llm.check.ranks.judge import NAMES, judge, unchecked
from blade_llm.check.ranks.meeting import Leader, MeetingError, Place, join
from blade_llm.check.ranks.messages import Hello
from blade_llm.engine.version import package_version
from blade_protocol.check import CheckItem

WAIT_SECONDS: Final = 600.0
"""How long machines wait for each other unless told otherwise: pods of a group start minutes apart where one has to
pull the image."""


def check_machines(place: Place, node_rank: int, nnodes: int) -> tuple[CheckItem, ...]:
    """Meet the other machines as number ``node_rank`` and return machine 0's items, which are the same on all."""
    try:
        return asyncio.run(_meet(place, _own_hello(node_rank, nnodes)))
    except MeetingError as error:
        failed = CheckItem(name=NAMES[0], status="FAILED", detail=str(error))
        return (failed, *unchecked("this machine did not meet the others, see check_nodes"))


async def _meet(place: Place, own: Hello) -> tuple[CheckItem, ...]:
    async def measure_here(address: str) -> Measured:
        device = 0 if own.gpus else None
        return await measure(Task(address=address, rank=own.node_rank, size=own.nnodes, device=device))

    if own.node_rank:
        return await join(place, own, measure_here)
    return await Leader(place, own, measure_here, _free_address).meet(judge)


def _free_address(host: str) -> str:
    """Where ranks of all machines can meet: a port of this machine that nobody uses."""
    with socket.create_server(("", 0)) as probe:
        return f"tcp://{f'[{host}]' if ':' in host else host}:{probe.getsockname()[1]}"


def _own_hello(node_rank: int, nnodes: int) -> Hello:
    import torch

    return Hello(
        node_rank=node_rank,
        nnodes=nnodes,
        host=socket.gethostname(),
        instance=secrets.token_hex(8),
        blade_llm=package_version(),
        torch=_version("torch"),
        gpus=torch.cuda.device_count() if torch.cuda.is_available() else 0,
    )


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
