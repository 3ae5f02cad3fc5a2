"""What the stages of a pipeline do together: each sends the next one its hidden states, the last one the first what was
sampled.

Every tensor rank of a stage has a link of its own, to the ranks with its number in the stages before and after: a ring.
"""

from __future__ import annotations

from typing import Final, Protocol

import torch
from torch import Tensor

from blade_llm.parallel.group import CollectiveError, RankGroup

_ROUNDS: Final = 2
"""Once around the ring the least is found, the second time all are told."""


class StageLink(Protocol):
    """One rank's way from the stage before and to the stage after; the last is before the first.

    What is sent arrives once and in order. All methods but :meth:`abort` are called by one thread at a time.
    """

    @property
    def stage(self) -> int:
        """This rank's stage, from 0 on."""

    @property
    def stages(self) -> int:
        """How many there are, at least 2."""

    def send(self, payload: memoryview) -> None:
        """Send to the next stage, without waiting for it. The bytes must not change afterwards."""

    def receive(self, *, wait: bool = True) -> memoryview | None:
        """The next message of the stage before; without ``wait`` None where there is none yet.

        Raises :class:`~blade_llm.parallel.group.RankLostError` where the stage before is gone, or sends nothing for
        long.
        """

    def abort(self, lost_rank: int) -> None:
        """Make a :meth:`receive` that waits here raise :class:`~blade_llm.parallel.group.RankLostError`, which names
        that rank, and all later ones. From any thread."""

    def close(self) -> None:
        """Leave the ring."""


def send_tensor(link: StageLink, x: Tensor) -> None:
    """Send ``x``, which nobody changes afterwards; from a GPU through the host's memory."""
    host = x.detach().cpu().contiguous()
    link.send(host.view(-1).view(torch.uint8).numpy().data)


def receive_tensor(link: StageLink, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """What :func:`send_tensor` has sent, in memory of its own.

    Raises as :meth:`StageLink.receive` does, and :class:`~blade_llm.parallel.group.CollectiveError` where the stage
    before has sent something else.
    """
    payload = link.receive()
    assert payload is not None
    x = torch.empty(shape, dtype=dtype)
    if payload.nbytes != x.nbytes:
        raise CollectiveError(f"the stage before {link.stage} has sent {payload.nbytes} bytes instead of {x.nbytes}")
    x.view(-1).view(torch.uint8).numpy().data[:] = payload
    return x.to(device)


def least_of_stages(link: StageLink, value: int) -> int:
    """The least of the stages' ``value``, which all of them call with."""
    for _ in range(_ROUNDS):
        if link.stage == 0:
            link.send(_encoded(value))
            value = _received(link)
        else:
            value = min(value, _received(link))
            link.send(_encoded(value))
    return value


def least_of_ranks(group: RankGroup | None, link: StageLink | None, value: int) -> int:
    """The least ``value`` of all ranks of all stages, which all of them call with; None: there is one tensor rank, or
    one stage."""
    if group is not None:
        value = group.least(value)
    return value if link is None else least_of_stages(link, value)


def _encoded(value: int) -> memoryview:
    return memoryview(value.to_bytes(8, "little", signed=True))


def _received(link: StageLink) -> int:
    payload = link.receive()
    assert payload is not None
    return int.from_bytes(payload, "little", signed=True)
