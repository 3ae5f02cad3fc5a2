"""Compares a family with transformers in every kind of step, at every position."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from engine_support.families import Row, save_row
from engine_support.runner_driver import Driver, Live, prompt_of
from engine_support.tiny_models import engine_config, reference_logits

from blade_llm.runner import build_runner
from blade_llm.runner.torch_runner import TorchRunner

TOLERANCE = 1e-4
GREEDY_TOKENS = 64
PROMPT = 75


def all_selected(token_ids: torch.Tensor, selected: torch.Tensor | None) -> bool:
    """Of decodes, which need be computed once to have all logits."""
    return selected is not None and torch.equal(selected.cpu(), torch.arange(len(token_ids)))


class EveryPosition:
    """A model that keeps the logits of all tokens of a step, and not of those to sample from alone."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.logits_of_step = torch.empty(0)

    def __call__(self, token_ids: torch.Tensor, step: Any, selected: torch.Tensor | None) -> torch.Tensor:
        if all_selected(token_ids, selected):
            alone: torch.Tensor = self.model(token_ids, step, selected)
            self.logits_of_step = self.model.logits(alone).float()
            return alone
        every = self.model(token_ids, step, None)
        self.logits_of_step = self.model.logits(every).float()
        hidden: torch.Tensor = self.model(token_ids, step, selected)
        torch.testing.assert_close(hidden, every if selected is None else every[selected], atol=1e-4, rtol=1e-2)
        return hidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class Comparison:
    """Drives a runner and compares what it computes with transformers."""

    def __init__(self, runner: TorchRunner, reference: Any) -> None:
        assert not isinstance(runner.model, EveryPosition)
        self.model = EveryPosition(runner.model)
        runner.model = self.model  # type: ignore[assignment]
        self.driver = Driver(runner)
        self.reference = reference
        self.computed: dict[int, dict[int, torch.Tensor]] = {}
        """Slot → position → logits."""
        self.deviation = 0.0

    def enter(self, slot: int, tokens: list[int], **options: Any) -> Live:
        self.computed[slot] = {}
        return self.driver.enter(slot, tokens, **options)

    def step(self, counts: dict[int, int]) -> None:
        starts = {slot: self.driver.live[slot].computed for slot in counts}
        self.driver.step(counts)
        rows = iter(self.model.logits_of_step)
        for slot, count in counts.items():
            for position in range(starts[slot], starts[slot] + count):
                self.computed[slot][position] = next(rows).to("cpu", copy=True)

    def decode(self, slots: list[int], steps: int) -> None:
        for _ in range(steps):
            self.step(dict.fromkeys(slots, 1))

    def check(self, slot: int) -> None:
        """All logits of the request so far are transformers', and so are the tokens after its prompt."""
        request, seen = self.driver.live[slot], self.computed[slot]
        theirs = reference_logits(self.reference, request.tokens)
        for position, logits in seen.items():
            self.deviation = max(self.deviation, float((logits - theirs[position]).abs().max()))
            assert self.deviation < TOLERANCE, f"slot {slot}, position {position}: {self.deviation}"
        sampled = [position for position in sorted(seen) if position >= PROMPT]
        expected = [int(theirs[position - 1].argmax()) for position in sampled]
        assert [request.tokens[position] for position in sampled] == expected

    def finish(self, slot: int, **options: Any) -> None:
        self.check(slot)
        self.driver.leave(slot, **options)


def prefill_and_decode(compare: Comparison) -> None:
    compare.enter(3, prompt_of(PROMPT))
    compare.step({3: PROMPT})
    compare.decode([3], GREEDY_TOKENS)
    compare.finish(3)


def chunked_prefill(compare: Comparison) -> None:
    compare.enter(0, prompt_of(PROMPT, seed=1))
    for chunk in (1, 16, 15, 33, 10):
        compare.step({0: chunk})
    compare.decode([0], 4)
    compare.finish(0)


def prefix_hit(compare: Comparison) -> None:
    first = compare.enter(1, prompt_of(PROMPT, seed=2))
    compare.step({1: PROMPT})
    shared = first.blocks[:4]
    compare.enter(2, first.tokens[:64] + prompt_of(11, seed=3), shared=shared)
    compare.step({2: 11, 1: 1})
    compare.decode([1, 2], 4)
    compare.check(2)
    compare.driver.leave(2, keep_blocks=True)
    compare.finish(1)


def preempted(compare: Comparison) -> None:
    """Its blocks go to another request, and all its tokens are computed anew."""
    request = compare.enter(4, prompt_of(PROMPT, seed=4))
    compare.step({4: PROMPT})
    compare.decode([4], 30)
    tokens = list(request.tokens)
    compare.finish(4)
    compare.enter(5, prompt_of(PROMPT, seed=5))
    compare.step({5: PROMPT})
    compare.enter(4, tokens, prompt=PROMPT)
    compare.step({4: 50, 5: 1})
    compare.step({4: len(tokens) - 50, 5: 1})
    compare.decode([4, 5], 5)
    compare.finish(4)
    compare.finish(5)


def resumed(compare: Comparison) -> None:
    """Another replica goes on after the tokens that one has sent."""
    request = compare.enter(6, prompt_of(PROMPT, seed=6))
    compare.step({6: PROMPT})
    compare.decode([6], 12)
    whole = list(request.tokens)
    compare.finish(6)
    again = compare.enter(6, whole[: PROMPT + 5], prompt=PROMPT)
    compare.step({6: PROMPT + 5})
    compare.decode([6], 7)
    assert again.tokens == whole
    compare.finish(6)


def batch_of_eight(compare: Comparison) -> None:
    """Decodes of very different lengths together with the chunks of three prefills."""
    lengths = {5: 190, 0: 3, 7: 64, 2: 17, 4: 33}
    for slot, length in lengths.items():
        compare.enter(slot, prompt_of(length, seed=slot))
        compare.step({slot: length})
    for slot, length in {1: 90, 6: 41, 3: 100}.items():
        compare.enter(slot, prompt_of(length, seed=slot))
    compare.step({**dict.fromkeys(lengths, 1), 1: 50, 6: 41, 3: 7})
    compare.step({**dict.fromkeys(lengths, 1), 6: 1, 1: 40, 3: 93})
    compare.decode([5, 0, 7, 2, 4, 1, 6, 3], 3)
    for slot in list(compare.driver.live):
        theirs = reference_logits(compare.reference, compare.driver.live[slot].tokens)
        for position, logits in compare.computed[slot].items():
            compare.deviation = max(compare.deviation, float((logits - theirs[position]).abs().max()))
        compare.driver.leave(slot)
    assert compare.deviation < TOLERANCE


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (prefill_and_decode, chunked_prefill, prefix_hit, preempted, resumed, batch_of_eight)
}


@dataclass(frozen=True)
class Proof:
    """What was found of a row."""

    deviation: float
    """Largest difference of a logit in fp32."""
    noise: float
    """Of bf16: our distance from fp32 as a multiple of transformers' own."""
    fused: bool
    """In bf16 all layers were one native call."""


def prove(row: Row, folder: Path) -> Proof:
    """All scenarios in fp32, and the noise of bf16. Raises AssertionError."""
    reference = save_row(folder, row)
    compare = Comparison(build_runner(engine_config(folder, **row.runner)), reference)
    for scenario in SCENARIOS.values():
        scenario(compare)
    noise, fused = bf16_noise(row, folder, reference)
    return Proof(compare.deviation, noise, fused)


def bf16_noise(row: Row, folder: Path, reference: Any) -> tuple[float, bool]:
    """The root mean square of what bf16 changes in the logits of a prompt, as a multiple of what it changes in
    transformers; and whether the layers were one call."""
    runner = build_runner(engine_config(folder, dtype="bfloat16", **row.runner))
    fused = getattr(runner.model, "fused", None) is not None  # transformers' modules have no such call
    compare = Comparison(runner, reference)
    tokens = prompt_of(PROMPT, seed=7)
    compare.enter(0, tokens)
    compare.step({0: 40})
    compare.step({0: PROMPT - 40})
    ours = torch.stack([compare.computed[0][position] for position in range(PROMPT)])
    exact = reference_logits(reference, tokens)
    theirs = reference_logits(_in_bf16(reference), tokens).float()
    return float((ours - exact).square().mean().sqrt() / (theirs - exact).square().mean().sqrt()), fused


def _in_bf16(reference: Any) -> Any:
    """The model in bf16, but its rotary frequencies, which loading keeps in fp32."""
    model = copy.deepcopy(reference)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    return model
