"""Launched work whose results may still be on the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from blade_llm.runner.prompt_outputs import PromptOutputResults
from blade_llm.runner.tree_inputs import Guesses
from blade_llm.sampling.parameters import INVALID_TOKEN, NO_TOKEN, TokenLogprobs
from blade_llm.sampling.sampler import SampledSlots, SamplerOutput
from blade_llm.scheduling.plan import DraftTree, StepResult, TreeResult


@dataclass(frozen=True, slots=True)
class LaunchedForward:
    """A launched forward pass: the logits of the slots that sample."""

    sampled: SampledSlots
    logits: Tensor | None
    """[sampled, vocabulary] in the model's type, of several ranks this one's part of the vocabulary; None when no slot
    samples."""
    prompt_results: PromptOutputResults | None = None
    drafts: Drafts | None = None
    written_slots: Tensor | None = None
    """[sampled] int64: the slots whose tables get the tokens; None: ``sampled``."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """The draft tokens that a step verifies."""

    counts: list[int]
    """Of each chunk that samples; of a tree all that is sampled after."""
    tokens: Tensor | None
    """[rows] int32: the draft token after each sampled position; the last of each chunk has none, and no meaning, nor
    has any of a tree. None: all chunks have trees."""
    invalid: Tensor | None = None
    """[] bool: the draft model's logits are no numbers; None: there is no draft model."""
    trees: Guesses = field(default_factory=dict)
    """Index of a chunk → how its draft tokens branch, and these."""

    @classmethod
    def of(
        cls, counts: list[int] | None, rows: SampledSlots, token_ids: Tensor, invalid: Tensor | None, trees: Guesses
    ) -> Drafts | None:
        """The draft tokens that a step verifies, as they are in the table ``token_ids``; ``rows``: of the step. None
        where ``counts`` is."""
        if counts is None:
            return None
        if len(trees) == len(counts):  # the host has them all
            return cls(counts, None, invalid, trees)
        return cls(counts, token_ids[rows.slot_index, rows.position_index], invalid, trees)

    def by_slot(self, slots: list[int]) -> dict[int, list[int]]:
        """The draft tokens to verify of each slot that has some; waits for the device. ``slots``: of the rows."""
        tokens = [] if self.tokens is None else self.tokens.tolist()
        found: dict[int, list[int]] = {}
        row = 0
        for index, count in enumerate(self.counts):
            if index in self.trees:
                tree, drafts = self.trees[index]
                found[slots[row]] = drafts[: tree.num_guesses]
            elif count:
                found[slots[row]] = tokens[row : row + count]
            row += count + 1
        return found

    def accepted(self, sampled: list[int], drafted: list[int], paths: Mapping[int, list[int]]) -> list[list[int]]:
        """The tokens that each chunk brings: those that equal their drafts, and the one after them.

        ``sampled``, ``drafted``: one for each row; ``paths``: from :meth:`paths`.
        """
        outputs = []
        row = 0
        for index, count in enumerate(self.counts):
            if index in paths:
                outputs.append([sampled[row], *(sampled[row + 1 + guess] for guess in paths[index])])
            else:
                end = row
                while end < row + count and sampled[end] == drafted[end]:
                    end += 1
                outputs.append(sampled[row : end + 1])
            row += count + 1
        return outputs

    def paths(self, sampled: list[int]) -> dict[int, list[int]]:
        """The accepted guesses of each tree, by the index of its chunk. ``sampled``: one for each row."""
        return {index: accepted_path(*self.trees[index], rows) for index, rows in self._rows_of_trees(sampled)}

    def tree_results(self, sampled: list[int], paths: Mapping[int, list[int]]) -> dict[int, TreeResult]:
        """What became of each tree. ``sampled``: one for each row; ``paths``: from :meth:`paths`."""
        found = {}
        for index, rows in self._rows_of_trees(sampled):
            tree, _ = self.trees[index]
            of_window = iter(rows[1 + tree.num_guesses :])
            window = [rows[0] if end < 0 else next(of_window) for end in tree.window_ends]
            window = [max(token, 0) for token in window]  # a mark is no token to go on with, and others are as good
            found[index] = TreeResult(paths[index], window)
        return found

    def _rows_of_trees(self, sampled: list[int]) -> Iterator[tuple[int, list[int]]]:
        row = 0
        for index, count in enumerate(self.counts):
            if index in self.trees:
                yield index, sampled[row : row + count + 1]
            row += count + 1


def accepted_path(tree: DraftTree, drafts: list[int], sampled: list[int]) -> list[int]:
    """The guesses, from the first on, that each equal what was sampled after the one before. ``sampled``: after the
    last known token, then after each guess."""
    path: list[int] = []
    before = -1
    for index in range(tree.num_guesses):
        if tree.parents[index] == before and drafts[index] == sampled[before + 1]:
            path.append(index)
            before = index
    return path


class LaunchedStep:
    """A step's tokens on their way to the host. On CPU they are there; on GPU a copy was queued behind the sampling.

    A step that samples nothing (part of a long prompt) is waited for like any other: else the host would run ahead by
    all parts of the prompt, and take their launches' time for the device's.
    """

    def __init__(
        self,
        sampled: SamplerOutput | None,
        device: torch.device,
        prompt_results: PromptOutputResults | None = None,
        drafts: Drafts | None = None,
    ) -> None:
        self._sampled = sampled
        self._drafts = drafts
        self._paths: dict[int, list[int]] = {}
        """The accepted guesses of each tree."""
        self._prompt_results = prompt_results
        self._event: torch.cuda.Event | None = None
        self._host: list[Tensor] = []
        if sampled is not None:
            wanted = [sampled.tokens if sampled.reported is None else sampled.reported]
            if sampled.logprobs is not None:
                wanted += [sampled.logprobs.chosen, sampled.logprobs.top_values, sampled.logprobs.top_tokens]
            self._host = [tensor.to("cpu", non_blocking=True) for tensor in wanted]
        self._host_drafts: Tensor | None = None
        if drafts is not None and drafts.tokens is not None:
            self._host_drafts = drafts.tokens.to("cpu", non_blocking=True)
        self._host_draft_invalid: Tensor | None = None
        if drafts is not None and drafts.invalid is not None:
            self._host_draft_invalid = drafts.invalid.to("cpu", non_blocking=True)
        self._host_prompt_results: list[Tensor] = []
        if prompt_results is not None:
            self._host_prompt_results = [tensor.to("cpu", non_blocking=True) for tensor in prompt_results.tensors]
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def done(self) -> bool:
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def result(self) -> StepResult:
        if self._event is not None:
            self._event.synchronize()
        if self._drafts is not None and self._drafts.trees:
            self._paths = self._drafts.paths(self._host[0].tolist())
        tokens, logprobs = self._sampled_tokens()
        trees: dict[int, TreeResult] = {}
        if self._drafts is not None and self._paths:
            trees = self._drafts.tree_results(self._host[0].tolist(), self._paths)
        if self._prompt_results is None:
            prompt: tuple[Any, Any] = {}, {}
        else:
            prompt = self._prompt_results.read(self._host_prompt_results)
        invalid, exhausted = self._marked()
        return StepResult(tokens, logprobs, *prompt, invalid, self._draft_invalid, trees, exhausted)

    @property
    def _draft_invalid(self) -> bool:
        return self._host_draft_invalid is not None and bool(self._host_draft_invalid)

    def _marked(self) -> tuple[list[int], list[int]]:
        """Indices of the slots that sampled where the logits are no numbers, and of those with no token left."""
        if self._sampled is None or self._sampled.reported is None or min(self._host[0].tolist(), default=0) >= 0:
            return [], []
        of_slots = self._sampled_tokens()[0]
        invalid = [index for index, tokens in enumerate(of_slots) if INVALID_TOKEN in tokens]
        return invalid, [index for index, tokens in enumerate(of_slots) if NO_TOKEN in tokens]

    def _sampled_tokens(self) -> tuple[list[list[int]], list[list[TokenLogprobs] | None]]:
        """Tokens and log-probabilities of the slots that sampled."""
        if self._sampled is None:
            return [], []
        rows = self._host[0].tolist()
        if self._drafts is None:
            tokens = [[token] for token in rows]
        else:
            drafted = [] if self._host_drafts is None else self._host_drafts.tolist()
            tokens = self._drafts.accepted(rows, drafted, self._paths)
        logprobs: list[list[TokenLogprobs] | None] = [None] * len(tokens)
        if wanted_logprobs := self._sampled.logprobs:
            chosen = self._host[1].tolist()
            values, ids = (tensor.numpy() for tensor in self._host[2:])  # as wide as the slot that wants most
            places = self._places(tokens)
            for i, (row, count) in enumerate(zip(wanted_logprobs.indices, wanted_logprobs.counts, strict=True)):
                if (index := places[row]) < 0:
                    continue
                best = tuple(ids[i, :count].tolist()), tuple(values[i, :count].tolist())
                entries = logprobs[index] = logprobs[index] or []
                entries.append(TokenLogprobs(chosen[i], *best))
        return tokens, logprobs

    def _places(self, tokens: list[list[int]]) -> Sequence[int]:
        """Of each row the index of the chunk that it brings a token to; -1: of none, its draft is behind a rejected
        one."""
        if self._drafts is None:
            return range(len(tokens))
        places: list[int] = []
        for index, (count, brought) in enumerate(zip(self._drafts.counts, tokens, strict=True)):
            if index in self._paths:
                path = self._paths[index]
                places += [index, *(index if guess in path else -1 for guess in range(count))]
            else:
                places += [index] * len(brought) + [-1] * (count + 1 - len(brought))
        return places
