"""Rank 0's runner among several: every step goes to the other ranks first, so that none of them waits for this host.

All ranks launch the same forward passes and samplings in the same order; what they say to each other meanwhile is the
collectives' business.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Protocol

from blade_llm.engine.ranks.messages import encode_forward, encode_release_cache, encode_sampling
from blade_llm.models.dtypes import DTypeName
from blade_llm.sampling.masks import DraftMasks, TokenMasks
from blade_llm.scheduling.plan import PendingForward, PendingStep, Runner, StepPlan, StepResult
from blade_protocol.state import MemoryPlan

if TYPE_CHECKING:
    import torch

    from blade_llm.decoding.step_seconds import StepSeconds
    from blade_llm.runner.draft import DraftRunner
    from blade_llm.runner.graphs.mixed import MixedGraphs
    from blade_llm.runner.lora.adapters import RunnerAdapters


_POLL_SECONDS: Final = 20e-6
"""The system makes it some 70 microseconds."""


class OtherRanks(Protocol):
    """The other ranks; :class:`~blade_llm.engine.ranks.processes.RankProcesses` has their processes."""

    def send(self, payload: bytes, frames: Sequence[bytes] = ()) -> None:
        """Send a message to all of them without waiting, with further ``frames``, which are not copied."""

    def raise_if_lost(self) -> None:
        """Raise :class:`~blade_llm.engine.ranks.lost.RankFailedError` if one is lost."""

    def naming_the_rank(self) -> AbstractContextManager[None, None]:
        """A context in which the error of a collective becomes that of the rank that is to blame."""


class LoadedRunner(Runner, Protocol):
    """A runner and what :mod:`blade_llm.engine.build` wants to know of it; see
    :class:`~blade_llm.runner.torch_runner.TorchRunner`."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def memory_plan(self) -> MemoryPlan: ...

    @property
    def timings(self) -> dict[str, float]: ...

    @property
    def description(self) -> str: ...

    @property
    def dtype_name(self) -> DTypeName: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def mixed_graphs(self) -> MixedGraphs | None: ...

    @property
    def step_seconds(self) -> StepSeconds | None: ...

    @property
    def draft(self) -> DraftRunner | None: ...

    @property
    def adapters(self) -> RunnerAdapters | None: ...


class RankedRunner:
    """Implements :class:`LoadedRunner` around rank 0's own runner.

    Errors of collectives, which only say that somebody is gone, become the
    :class:`~blade_llm.engine.ranks.lost.RankFailedError` of the rank that is to blame.
    """

    def __init__(self, runner: LoadedRunner, ranks: OtherRanks, *, polls: bool = False) -> None:
        """``polls``: look for lost ranks while a step is awaited, which no :meth:`RankGroup.abort` ends."""
        self._runner = runner
        self._polls = polls
        self._ranks = ranks
        self._naming = ranks.naming_the_rank()

    def launch_forward(self, plan: StepPlan, draft_masks: DraftMasks | None = None) -> PendingForward:
        """See :class:`~blade_llm.scheduling.plan.Runner`. ``draft_masks`` are left out: only rank 0 has grammars, and
        every rank's draft model has to sample the same."""
        self._ranks.raise_if_lost()
        self._ranks.send(encode_forward(plan), [image.pixels for image in plan.new_images])
        with self._naming:
            return self._runner.launch_forward(plan)

    def draft_tokens(self, forward: PendingForward) -> dict[int, list[int]]:
        """The draft tokens of a launched forward pass, by slot."""
        with self._naming:
            return self._runner.draft_tokens(forward)

    def launch_sampling(self, forward: PendingForward, masks: TokenMasks | None = None) -> RankedStep:
        """See :class:`~blade_llm.scheduling.plan.Runner`."""
        self._ranks.send(encode_sampling(masks))
        with self._naming:
            step = self._runner.launch_sampling(forward, masks)
            return RankedStep(step, self._naming, self._ranks if self._polls else None)

    def release_cache(self) -> None:
        """See :class:`~blade_llm.scheduling.plan.Runner`."""
        self._ranks.send(encode_release_cache())
        self._runner.release_cache()

    @property
    def num_blocks(self) -> int:
        return self._runner.num_blocks

    @property
    def max_model_len(self) -> int:
        return self._runner.max_model_len

    @property
    def memory_plan(self) -> MemoryPlan:
        """Of one rank."""
        return self._runner.memory_plan

    @property
    def timings(self) -> dict[str, float]:
        """Those of rank 0."""
        return self._runner.timings

    @property
    def description(self) -> str:
        return self._runner.description

    @property
    def dtype_name(self) -> DTypeName:
        return self._runner.dtype_name

    @property
    def device(self) -> torch.device:
        return self._runner.device

    @property
    def mixed_graphs(self) -> MixedGraphs | None:
        return self._runner.mixed_graphs

    @property
    def step_seconds(self) -> StepSeconds | None:
        return self._runner.step_seconds

    @property
    def draft(self) -> DraftRunner | None:
        return self._runner.draft

    @property
    def adapters(self) -> RunnerAdapters | None:
        return self._runner.adapters


class RankedStep:
    """A launched step of rank 0, which samples what all ranks sample."""

    __slots__ = ("_naming", "_ranks", "_step")

    def __init__(
        self, step: PendingStep, naming: AbstractContextManager[None, None], ranks: OtherRanks | None = None
    ) -> None:
        """``ranks``: to look at while waiting; None: who waits is freed when one is lost."""
        self._step = step
        self._ranks = ranks
        self._naming = naming

    def done(self) -> bool:
        """Whether :meth:`result` would return at once."""
        return self._step.done()

    def result(self) -> StepResult:
        """Wait for the tokens and return them."""
        if self._ranks is not None:
            while not self._step.done():
                self._ranks.raise_if_lost()
                time.sleep(_POLL_SECONDS)
        with self._naming:
            return self._step.result()
