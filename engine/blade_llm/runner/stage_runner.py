"""The runner of one stage of a pipeline: its layers, and the way of what was sampled from the last stage to the first.

Hidden states go from stage to stage within the model. The last stage samples and sends each step's results to the
first, whose tables need the tokens for the next embeddings, and whose rank 0 returns the results. Other stages never
learn the tokens, and need not.

Draft tokens are in the plan where the host has them. Those of a draft model, which the first stage alone has, go ahead
of the step's hidden states to the last stage, which verifies them: nothing depends on two stages drafting the same.
"""

from __future__ import annotations

from collections import deque
from typing import Final, cast

import msgspec
import torch
from torch import Tensor

from blade_llm.config import EngineConfig
from blade_llm.models.config import ModelConfig
from blade_llm.parallel.group import RankGroup
from blade_llm.parallel.link import StageLink, receive_tensor, send_tensor
from blade_llm.runner.pending import LaunchedForward, LaunchedStep
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.masks import DraftMasks, TokenMasks
from blade_llm.scheduling.plan import PendingForward, StepPlan, StepResult

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(StepResult)


class StageRunner(TorchRunner):
    """A :class:`~blade_llm.runner.torch_runner.TorchRunner` of which all stages launch the same steps, each its part
    of them. Only steps of the first stage have results."""

    link: StageLink

    def __init__(
        self, config: EngineConfig, model_config: ModelConfig, group: RankGroup | None, link: StageLink
    ) -> None:
        """See :class:`~blade_llm.runner.torch_runner.TorchRunner`."""
        self._awaited: deque[AwaitedStep] = deque()
        """Launched steps whose results the first stage has not received, oldest first."""
        super().__init__(config, model_config, group=group, link=link)

    @torch.inference_mode()
    def launch_forward(self, plan: StepPlan, draft_masks: DraftMasks | None = None) -> LaunchedForward:
        """See :class:`~blade_llm.scheduling.plan.Runner`. The first stage waits for sampled tokens that ``plan`` goes
        on from: a scheduler that has seen them does not let it wait."""
        if self._awaited:
            self._settle(plan)
        return super().launch_forward(plan, draft_masks)

    @torch.inference_mode()
    def launch_sampling(self, forward: PendingForward, masks: TokenMasks | None = None) -> LaunchedStep | AwaitedStep:  # type: ignore[override]
        """See :class:`~blade_llm.scheduling.plan.Runner`. The last stage waits for its device, to send the results."""
        if self.link.stage == 0:
            awaited = AwaitedStep(self, cast(LaunchedForward, forward))
            self._awaited.append(awaited)
            return awaited
        step = super().launch_sampling(forward, masks)
        if self.model_config.ends:
            result = step.result()
            if self.group is not None and self.group.rank:  # rank 0 alone returns more
                result = StepResult(result.tokens, [None] * len(result.tokens))
            self.link.send(memoryview(_ENCODER.encode(result)))
        return step

    def _make_drafts(self, plan: StepPlan, masks: DraftMasks | None) -> Tensor | None:
        """The first stage's draft model makes them, and all get them."""
        invalid = super()._make_drafts(plan, masks)
        drafting = [chunk for chunk in plan.chunks if chunk.num_draft_tokens] if plan.draft_chunks else []
        if not drafting:
            return invalid
        slots = [chunk.slot for chunk in drafting for _ in range(chunk.num_draft_tokens)]
        ends = [(chunk.start + chunk.count, chunk.num_draft_tokens) for chunk in drafting]
        positions = [position for end, count in ends for position in range(end - count, end)]
        where = tuple(torch.tensor([slots, positions], device=self.device))
        if self.link.stage:
            tokens = receive_tensor(self.link, (len(slots),), torch.int32, self.device)
            self.tables.token_ids[where] = tokens
        else:
            tokens = self.tables.token_ids[where]
        if not self.model_config.ends:
            send_tensor(self.link, tokens)
        return invalid

    def _settle(self, plan: StepPlan) -> None:
        """Have the tokens in the tables that ``plan`` goes on from, and let none come later into a slot that is another
        request's."""
        entering = {new.slot for new in plan.new_requests}
        needed = {chunk.slot for chunk in plan.chunks} - entering
        last: AwaitedStep | None = None
        for step in self._awaited:
            step.slots -= entering
            if step.slots & needed:
                last = step
        while self._awaited and self.receive(wait=last is not None and last.received is None):
            pass

    @torch.inference_mode()
    def receive(self, *, wait: bool) -> bool:
        """Take the results of the oldest step that lacks them, and write its tokens; whether they are there."""
        payload = self.link.receive(wait=wait)
        if payload is None:
            return False
        step = self._awaited.popleft()
        brought = step.take(_DECODER.decode(payload))
        if brought:
            slots, positions, tokens = torch.tensor(brought, device=self.device).t()
            self.tables.token_ids[slots, positions] = tokens.to(torch.int32)
        return True


class AwaitedStep:
    """A step on its way through the stages."""

    def __init__(self, runner: StageRunner, forward: LaunchedForward) -> None:
        self._runner = runner
        self._sampled, self._drafts = forward.sampled, forward.drafts
        self.slots = set(forward.sampled.slots)
        """Those that still belong to the requests that sample here."""
        self.received: StepResult | None = None

    def take(self, result: StepResult) -> list[tuple[int, int, int]]:
        """Note what the last stage has sent; slot, position and token of each token that it brings to :attr:`slots`."""
        drafts, sampled = self._drafts, self._sampled
        if drafts is not None and drafts.invalid is not None and bool(drafts.invalid):
            result = msgspec.structs.replace(result, draft_invalid=True)
        self.received = result
        counts = [0] * len(result.tokens) if drafts is None else drafts.counts
        brought: list[tuple[int, int, int]] = []
        row = 0
        for tokens, count in zip(result.tokens, counts, strict=True):
            slot, first = sampled.slots[row], sampled.positions[row]
            if slot in self.slots:
                brought += [(slot, first + index, max(token, 0)) for index, token in enumerate(tokens)]
            row += count + 1
        return brought

    def done(self) -> bool:
        """Whether :meth:`result` would return at once."""
        while self.received is None and self._runner.receive(wait=False):
            pass
        return self.received is not None

    def result(self) -> StepResult:
        """Wait for the last stage. Raises :class:`~blade_llm.parallel.group.RankLostError`."""
        while self.received is None:
            self._runner.receive(wait=True)
        return self.received
