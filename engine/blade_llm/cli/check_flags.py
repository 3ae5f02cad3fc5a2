"""The flags of ``blade_llm_check`` that are its own, and what those about several machines come to."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from blade_llm.check.items import ENVIRONMENT_ITEMS, ITEMS, MODEL_ITEMS, NODE_ITEMS, RANK_ITEMS, parse_items
from blade_llm.check.ranks.machines import WAIT_SECONDS, check_machines
from blade_llm.check.ranks.meeting import Place
from blade_llm.cli.flags import Flag, count, positive, seconds
from blade_llm.engine.nodes.address import Address, parse_address
from blade_llm.parallel.layout import RankLayout
from blade_protocol.check import CheckItem


def _items(text: str) -> tuple[str, ...]:
    try:
        return parse_items(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _address(text: str) -> Address:
    """``host:port``, ``[IPv6]:port``."""
    try:
        return parse_address(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form HOST:PORT, like 10.0.0.1:29500") from None


_LISTED: Final = ", ".join(f"{name} ({short})" for name, short in ITEMS.items())
OWN_FLAGS: Final = (
    Flag(
        name="items",
        help=f"what to check, by full or short name: {_LISTED} (default: the first three, with --model two more, "
        "with several ranks on this machine ranks; those about machines always with --dist_init_addr)",
        kind=_items,
        metavar="NAME,...",
    ),
    Flag(name="model", help="model folder (or hub id) to check", metavar="DIR"),
    Flag(
        name="mode",
        help="enforce: a WARNING exits 1 too; warn: only a FAILED does",
        default="enforce",
        choices=("enforce", "warn"),
    ),
)
NODE_FLAGS: Final = (
    Flag(
        name="nnodes",
        help="machines of the engine: memory is planned for this one's ranks",
        kind=positive,
        default=1,
    ),
    Flag(name="node_rank", help="this machine's number, from 0 on", kind=count, default=0),
    Flag(
        name="dist_init_addr",
        help="address of machine 0, where the machines meet: all of them run the check at the same time",
        kind=_address,
        metavar="HOST:PORT",
    ),
    Flag(
        name="dist_timeout",
        help="how long machines wait for each other",
        kind=seconds,
        default=WAIT_SECONDS,
    ),
)


@dataclass
class Ranks:
    """Implements :class:`blade_llm.check.items.Ranks`."""

    layout: RankLayout
    node_rank: int
    place: Place | None
    """None: there is one machine, or this one is checked without the others."""
    _machines: Sequence[CheckItem] = field(default=(), init=False)

    @property
    def here(self) -> int:
        return self.layout.ranks_per_node

    def machines(self) -> Sequence[CheckItem]:
        assert self.place is not None
        self._machines = self._machines or check_machines(self.place, self.node_rank, self.layout.nodes)
        return self._machines


def ranks_of(flags: Mapping[str, Any]) -> Ranks:
    """The engine's ranks by the flags. Raises ValueError for flags that do not go together."""
    nnodes, node_rank, address = flags["nnodes"], flags["node_rank"], flags["dist_init_addr"]
    layout = RankLayout(flags["tensor_parallel_size"], flags.get("pipeline_parallel_size", 1), nnodes)
    if node_rank >= nnodes:
        raise ValueError(f"--node_rank {node_rank} with --nnodes {nnodes}: give 0 to {nnodes - 1}")
    if nnodes > 1 and address is None and not flags["items"]:
        raise ValueError(
            f"--nnodes {nnodes} needs --dist_init_addr HOST:PORT, where the machines meet, or --items: those of them "
            "that are about this machine alone"
        )
    if nnodes == 1 or address is None:
        return Ranks(layout, node_rank, None)
    return Ranks(layout, node_rank, Place(address=address, seconds=flags["dist_timeout"]))


def names_of(flags: Mapping[str, Any], ranks: Ranks) -> tuple[str, ...]:
    """The items to run. Raises ValueError for items that need other flags."""
    names = flags["items"] or (
        *ENVIRONMENT_ITEMS,
        *(RANK_ITEMS if ranks.here > 1 else ()),
        *(MODEL_ITEMS if flags["model"] else ()),
    )
    if without_model := [name for name in names if name in MODEL_ITEMS and not flags["model"]]:
        raise ValueError(f"{', '.join(without_model)} needs --model DIR")
    if ranks.place is not None:
        return (*NODE_ITEMS, *(name for name in names if name not in NODE_ITEMS))
    if of_nodes := [name for name in names if name in NODE_ITEMS]:
        raise ValueError(f"{', '.join(of_nodes)} needs --nnodes N of at least 2, and --dist_init_addr HOST:PORT")
    return tuple(names)
