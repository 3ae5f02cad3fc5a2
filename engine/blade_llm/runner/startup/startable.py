"""The runner as profiling, warm-up and autotuning see it; it is a
:class:`~blade_llm.runner.torch_runner.TorchRunner`."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from blade_llm.cache.sizing import KVCachePlan
from blade_llm.config import EngineConfig
from blade_llm.models.config import ModelConfig
from blade_llm.models.dtypes import DTypeName
from blade_llm.runner.graphs.decode import SizedGraphs
from blade_llm.runner.tables import SlotTables
from blade_llm.scheduling.plan import PendingForward, PendingStep, StepPlan


class StartableDraft(Protocol):
    """A draft model."""

    shift: int
    """1 of a head, which computes each position with the token after it; else 0."""

    def launch(self, plan: StepPlan) -> Tensor:
        """Compute the plan's draft chunks and the step's draft tokens."""


class StartableRunner(Protocol):
    """A runner whose weights are loaded; :meth:`attach` gives it a KV cache and tables, :meth:`detach` frees them."""

    config: EngineConfig
    model_config: ModelConfig
    device: torch.device
    dtype_name: DTypeName
    num_blocks: int
    max_model_len: int
    tables: SlotTables

    @property
    def draft(self) -> StartableDraft | None:
        """The draft model of speculative decoding."""

    @property
    def all_graphs(self) -> list[SizedGraphs]:
        """In the order in which they are to be captured."""

    def attach(self, kv: KVCachePlan) -> None:
        """Allocate the KV cache, and the tables that go with it."""

    def detach(self) -> None:
        """Free what :meth:`attach` allocated."""

    def warm_kernels(self) -> None:
        """Compile every variant of every operator's kernel that the model can meet."""

    def launch_forward(self, plan: StepPlan) -> PendingForward:
        """Launch the forward pass of a step."""

    def launch_sampling(self, forward: PendingForward) -> PendingStep:
        """Launch the sampling of a step."""
