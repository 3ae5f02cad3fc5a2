"""Where each rank of an engine stands: in which pipeline stage, with which part of its layers, on which machine.

Ranks of one stage follow each other (Megatron-LM: Narayanan et al., arXiv 2104.04473, section 3): their collectives are
the frequent ones, and ranks that follow each other are on one machine as far as possible.
"""

from __future__ import annotations

from dataclasses import dataclass

from blade_llm.config import EngineConfig


@dataclass(frozen=True, slots=True)
class RankLayout:
    """``tensor`` ranks compute each layer together, ``pipeline`` stages follow each other, on ``nodes`` machines."""

    tensor: int = 1
    pipeline: int = 1
    nodes: int = 1
    expert_parallel: bool = False
    """Tensor ranks divide experts as wholes."""

    def __post_init__(self) -> None:
        if min(self.tensor, self.pipeline, self.nodes) < 1:
            raise ValueError(f"degrees below 1: {self}")
        if self.size % self.nodes:
            raise ValueError(f"{self.size} ranks cannot be divided among {self.nodes} machines")

    @classmethod
    def of(cls, config: EngineConfig) -> RankLayout:
        """That of an engine's ranks."""
        return cls(
            config.tensor_parallel_size, config.pipeline_parallel_size, config.nnodes, config.enable_expert_parallel
        )

    @property
    def size(self) -> int:
        """Ranks of the engine; rank 0 is the one with the scheduler."""
        return self.tensor * self.pipeline

    @property
    def ranks_per_node(self) -> int:
        return self.size // self.nodes

    def stage_of(self, rank: int) -> int:
        """The pipeline stage of a rank, from 0 on."""
        return rank // self.tensor

    def tensor_rank_of(self, rank: int) -> int:
        """The rank's number among those of its stage."""
        return rank % self.tensor

    def ranks_of_stage(self, stage: int) -> range:
        """All ranks of a stage."""
        return range(stage * self.tensor, (stage + 1) * self.tensor)

    def node_of(self, rank: int) -> int:
        """The machine of a rank, from 0 on."""
        return rank // self.ranks_per_node

    def ranks_of_node(self, node: int) -> range:
        """All ranks of a machine."""
        return range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node)

    def local_rank_of(self, rank: int) -> int:
        """The rank's number among those of its machine, which is that of its device."""
        return rank % self.ranks_per_node
