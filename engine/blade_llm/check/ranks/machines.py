"""The items about several machines, as one of them runs them."""

from __future__ import annotations

import asyncio
import secrets
import socket
from typing import Final

from blade_llm.check.ranks.all_reduce import Measured, Task, measure
from blade_llm.check.ranks.judge import NAMES, judge, unchecked
from blade_llm.check.ranks.meeting import Leader, MeetingError, Place, join
from blade_llm.check.ranks.messages import Hello
from blade_llm.engine.nodes.address import Address, choose_interface
from blade_llm.engine.version import package_version
from blade_llm.parallel.route import free_port
from blade_protocol.check import CheckItem

WAIT_SECONDS: Final = 600.0
"""How long machines wait for each other unless told otherwise: pods of a group start minutes apart where one has to
pull the image."""


def check_machines(place: Place, node_rank: int, nnodes: int) -> tuple[CheckItem, ...]:
    """Meet the other machines as number ``node_rank`` and return machine 0's items, which are the same on all."""
    choose_interface(place.address)  # for the processes that measure, as the engine's own do
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
    return f"tcp://{Address(host, free_port())}"


def _own_hello(node_rank: int, nnodes: int) -> Hello:
    import torch

    return Hello(
        node_rank=node_rank,
        nnodes=nnodes,
        host=socket.gethostname(),
        instance=secrets.token_hex(8),
        blade_llm=package_version(),
        torch=package_version("torch"),
        gpus=torch.cuda.device_count() if torch.cuda.is_available() else 0,
    )
