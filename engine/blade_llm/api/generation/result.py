"""From engine outputs to the choices of a response: text, log-probabilities and counts, whatever the route."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeAlias

import msgspec

from blade_llm.api.common.errors import ApiError, bad_request, refused_by_engine
from blade_llm.api.metrics.requests import GAPS
from blade_llm.engine.client import Generation, Outputs
from blade_llm.engine.messages import RequestError, RequestOutput
from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs
from blade_llm.text.output_parser import OutputParsing
from blade_llm.text.output_text import OutputText
from blade_llm.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One generated token with its log-probabilities and where its text begins in the output."""

    token_id: int
    logprobs: TokenLogprobs
    text_offset: int
    text: str
    """What it adds to the text."""


@dataclass(slots=True)
class ChoiceUpdate:
    """What one choice gained since the last update."""

    index: int
    text: str
    entries: list[TokenEntry]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    """The stop string, or the stop token's id unless that is the model's own end of sequence."""
    token_ids: Sequence[int] = ()
    """All its tokens, the one that ended it included; none where they were not asked for."""
    stop_entry: TokenEntry | None = None
    """The token that ended it, which is not among ``entries``; None without log-probabilities."""


PromptLogprobs: TypeAlias = list[TokenLogprobs | None]


class Choice:
    """One choice of a response as it grows."""

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        sampling: SamplingParams,
        param: str = "prompt",
        parsing: OutputParsing | None = None,
        field_names: Mapping[str, str] | None = None,
        *,
        with_token_ids: bool = False,
    ) -> None:
        self._index = index
        self._param = param
        self._field_names = field_names or {}
        self._stop_ids = frozenset(sampling.stop_token_ids)
        self._max_tokens = sampling.max_tokens
        self._shows_stop = sampling.include_stop_str_in_output
        shown_ids = frozenset[int]() if parsing is None else parsing.shown_ids(tokenizer)
        self._text = OutputText(tokenizer, prompt, sampling, shown_ids)
        self.reasoning = None if parsing is None else parsing.reasoning_counter(tokenizer)
        """Counts the reasoning tokens of a model that thinks."""
        self._entries: list[TokenEntry] = []
        """Tokens not yet passed on: an update without text waits for the next one."""
        self._token_ids: list[int] | None = [] if with_token_ids else None
        """The same, of all tokens; None: nobody wants them."""
        self.num_tokens = 0
        """Generated tokens, an end-of-sequence token included."""
        self.num_replayed = 0
        """How many of them another engine generated."""
        self.finish_reason: str | None = None
        self._stop_reason: int | str | None = None
        self._stop_entry: TokenEntry | None = None
        self.first_token_at: float | None = None
        self.last_token_at = 0.0
        self.gaps = [0] * (len(GAPS) + 1)
        """How often the time from one output to the next was in which bucket."""
        self.num_prompt = len(prompt)
        self.queue_seconds: float | None = None
        """How long it waited in the engine for its first step; None: its engine has not said it."""
        self.adapter_seconds = 0.0
        """The part of that in which its adapter was loaded."""
        self.preempted_after: Sequence[float] = ()
        """When it was preempted, in seconds from its arrival."""

    def add(self, output: RequestOutput) -> ChoiceUpdate | None:
        """Take one step's output. None when there is nothing to show yet. Raises :class:`ApiError`."""
        if self.finish_reason is not None:
            return None  # came before the abort reached the engine
        if output.error is not None:
            raise self._error(output.error)
        now = time.monotonic()
        if self.first_token_at is None:
            self.first_token_at = now
        else:
            self.gaps[bisect_left(GAPS, now - self.last_token_at)] += 1
        self.last_token_at = now
        if self.reasoning is not None:
            self.reasoning.add(output.token_ids)
        before = self.num_tokens
        text = self._text_of(output)
        if self._token_ids is not None:
            self._token_ids += _ids(output)[: self.num_tokens - before]
        if not text and self.finish_reason is None:
            return None
        entries, self._entries = self._entries, []
        update = ChoiceUpdate(self._index, text, entries, self.finish_reason, self._stop_reason)
        update.stop_entry = self._stop_entry
        if self._token_ids:
            update.token_ids, self._token_ids = self._token_ids, []
        return update

    def ended_by(self, output: RequestOutput) -> RequestOutput:
        """``output``, the last of a choice that began on another engine, with the finish reason its tokens imply."""
        token_ids = output.token_ids
        if token_ids and token_ids[-1] in self._stop_ids:
            stop = {"token_ids": token_ids[:-1], "finish_reason": "stop", "stop_token_id": token_ids[-1]}
            return msgspec.structs.replace(output, **stop)
        if self.num_tokens + len(token_ids) >= self._max_tokens:
            return msgspec.structs.replace(output, finish_reason="length")
        return output

    def mark_replayed(self) -> None:
        """Leave out of the latencies what came so far: another engine generated it."""
        self.num_replayed = self.num_tokens
        self.first_token_at = None
        self.gaps = [0] * len(self.gaps)

    def _text_of(self, output: RequestOutput) -> str:
        """What ``output`` adds to the text, up to a stop string; also counts and sets ``finish_reason``."""
        output_text, text = self._text, ""
        for position, token_id in enumerate(output.token_ids):
            offset = output_text.length
            text += output_text.add(token_id)
            if output.logprobs is not None:
                self._entries.append(TokenEntry(token_id, output.logprobs[position], offset, output_text.piece))
            self.num_tokens += 1
            if output_text.stopped:
                self.finish_reason = "stop"
                break
        else:
            if output.finish_reason is None:
                return text
            self.finish_reason = output.finish_reason
            if output.stop_token_id is not None:
                self.num_tokens += 1
                offset = output_text.length
                text += self._stop_at(output.stop_token_id)
                if output.stop_logprobs is not None:
                    piece = output_text.piece if self._shows_stop else ""
                    self._stop_entry = TokenEntry(output.stop_token_id, output.stop_logprobs, offset, piece)
        text += output_text.finish()
        if output_text.piece and self._entries:  # what is left of a character that never came
            last = self._entries[-1]
            self._entries[-1] = replace(last, text=last.text + output_text.piece)
        if output_text.stopped:  # perhaps the last characters completed a stop string
            self.finish_reason, self._stop_reason = "stop", output_text.stop_string
        return text

    def _error(self, error: RequestError) -> ApiError:
        """The engine's ``error`` with the request's own name of the field at fault."""
        if (refused := refused_by_engine(error)) is not None:
            return refused
        if not error.field:
            return bad_request(str(error), self._param)
        name = self._field_names.get(error.field, error.field)
        return bad_request(error.text(name), name)

    def _stop_at(self, token_id: int) -> str:
        """The text of the token that ended the output, where that is requested."""
        if token_id in self._stop_ids:
            self._stop_reason = token_id
        return self._text.add(token_id) if self._shows_stop else ""


def _ids(output: RequestOutput) -> list[int]:
    return output.token_ids if output.stop_token_id is None else [*output.token_ids, output.stop_token_id]


class PromptOnlyChoice(Choice):
    """A choice that holds the prompt and nothing else: what the engine samples is dropped."""

    def _text_of(self, output: RequestOutput) -> str:
        self.finish_reason = "length"
        return ""


@dataclass
class GenerationResult:
    """All choices of one HTTP request, fed from its :class:`Generation`."""

    generation: Generation
    choices: list[Choice]
    prompt_tokens: int
    samples: int = 1
    """Choices per prompt; a prompt's tokens count once."""
    prompt_logprobs: dict[int, PromptLogprobs] = field(default_factory=dict)
    """Number of the prompt → its tokens' log-probabilities, once they came; None for the first token."""
    cached_tokens: int = 0
    adapter_digest: str = ""
    """Of the content of the adapter that computes it, in hexadecimal, once the first output came; empty without one."""
    draft_tokens: int = 0
    """Verified for all choices; those accepted are in ``accepted_tokens``."""
    accepted_tokens: int = 0
    texts: list[list[str]] | None = None
    """The choices' texts so far, in pieces, for the payload log; None: they are not kept."""
    at_end: Callable[[], None] | None = None
    """Called when the request has ended, however it did."""
    started: float = field(default_factory=time.monotonic)

    @property
    def finished(self) -> bool:
        # Runs after every step: no generator.
        for choice in self.choices:  # noqa: SIM110
            if choice.finish_reason is None:
                return False
        return True

    @property
    def completion_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self.choices)

    async def next(self) -> list[ChoiceUpdate]:
        """Wait for progress and return what there is to show (perhaps nothing yet).

        Raises what :meth:`Generation.get` and :meth:`add` raise.
        """
        return self.add(await self.generation.get())

    def add(self, outputs: Outputs) -> list[ChoiceUpdate]:
        """What ``outputs`` bring to show, one piece a choice. Raises :class:`ApiError` when the engine refuses."""
        if len(outputs) == 1:
            ((index, output),) = outputs
            update = self._add(index, output)
            return [] if update is None else [update]
        updates: dict[int, ChoiceUpdate] = {}
        for index, output in outputs:
            update = self._add(index, output)
            if update is None:
                continue
            if index in updates:  # several steps piled up: one chunk
                earlier = updates[index]
                update = merge((earlier, update))
            updates[index] = update
        return list(updates.values())

    def _add(self, index: int, output: RequestOutput) -> ChoiceUpdate | None:
        if output.cached_tokens and index % self.samples == 0:
            self.cached_tokens += output.cached_tokens
        if output.draft_tokens:
            self.draft_tokens += output.draft_tokens
            self.accepted_tokens += output.accepted_tokens
        if output.prompt_logprobs is not None:
            self.prompt_logprobs[index // self.samples] = output.prompt_logprobs
        if output.adapter_digest:
            self.adapter_digest = output.adapter_digest
        choice = self.choices[index]
        if output.queue_seconds is not None:
            choice.queue_seconds, choice.adapter_seconds = output.queue_seconds, output.adapter_seconds
        if output.preempted_after:
            choice.preempted_after = output.preempted_after
        update = choice.add(output)
        if self.texts is not None and update is not None:
            self.texts[index].append(update.text)
        if update is not None and update.finish_reason is not None and output.finish_reason is None:
            self.generation.stop(index)  # a stop string
        return update

    def usage(self, *, generated: bool = True) -> dict[str, object]:
        """OpenAI's ``usage``; as it was before anything was ``generated``, if that is False."""
        if not generated:
            return {
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": 0,
                "total_tokens": self.prompt_tokens,
                "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            }
        details: dict[str, int] = {}
        if thinking := [choice for choice in self.choices if choice.reasoning is not None]:
            tokens = sum(min(choice.reasoning.count, choice.num_tokens) for choice in thinking if choice.reasoning)
            details["reasoning_tokens"] = tokens
        if self.draft_tokens:
            details["accepted_prediction_tokens"] = self.accepted_tokens
            details["rejected_prediction_tokens"] = self.draft_tokens - self.accepted_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            **({"completion_tokens_details": details} if details else {}),
        }


def merge(updates: Sequence[ChoiceUpdate]) -> ChoiceUpdate:
    """All pieces of one choice as one."""
    return ChoiceUpdate(
        updates[0].index,
        "".join(update.text for update in updates),
        [entry for update in updates for entry in update.entries],
        updates[-1].finish_reason,
        updates[-1].stop_reason,
        [token_id for update in updates for token_id in update.token_ids],
        updates[-1].stop_entry,
    )


def best_choices(updates: Sequence[ChoiceUpdate], n: int) -> list[ChoiceUpdate]:
    """The ``n`` choices of one prompt with the highest mean log-probability, best first."""

    def mean(update: ChoiceUpdate) -> float:
        values = [entry.logprobs.chosen for entry in update.entries]
        return sum(values) / len(values) if values else -inf  # an empty one is the last

    return sorted(updates, key=mean, reverse=True)[:n]
