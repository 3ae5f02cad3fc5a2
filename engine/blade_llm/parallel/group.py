"""What ranks of a tensor-parallel group do together (Megatron-LM: Shoeybi et al., arXiv 1909.08053).

Every collective is called by all ranks, in the same order, with tensors of the same shape and type, and gives all of
them the same bits: so all ranks sample the same tokens.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from blade_llm.kernels.collectives import CollectiveError, RankLostError

__all__ = ["CollectiveError", "RankGroup", "RankLostError"]


class RankGroup(Protocol):
    """Ranks that compute each layer together."""

    @property
    def rank(self) -> int:
        """This process's number, from 0 on."""

    @property
    def size(self) -> int:
        """How many there are."""

    @property
    def native(self) -> int | None:
        """Address of the C++ group, for operators that compute whole layers; None: collectives go through torch."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of the ranks' ``x`` (fp32, bf16 or fp16, contiguous), which is overwritten with it and returned.

        On CPUs 16-bit numbers are added in fp32 and rounded once; on GPUs they are what is sent, and NCCL may round
        each partial sum. Raises :class:`RankLostError`.
        """

    def all_gather(self, x: Tensor) -> Tensor:
        """The ranks' ``x`` ([..., width], any type, contiguous) beside each other in their order: [..., size * width].

        Raises :class:`RankLostError`.
        """

    def all_to_all(self, x: Tensor) -> Tensor:
        """This rank's share (:func:`~blade_llm.parallel.shares.share_of`) of the rows of the ranks' ``x``
        ([rows, width], any type, contiguous), those of the ranks beside each other: [share, size * width].

        Raises :class:`RankLostError`.
        """

    def least(self, value: int) -> int:
        """The least of the ranks' ``value``. Raises :class:`RankLostError`."""

    def abort(self, lost_rank: int) -> None:
        """Make the collective that waits here raise :class:`RankLostError`, which names that rank where it can. From
        any thread."""

    def close(self) -> None:
        """Leave the group: what others wait for here raises there."""
