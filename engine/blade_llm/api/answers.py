"""From engine outputs to answers: text, log-probabilities and counts of each choice, whatever the response's shape."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

import msgspec

from blade_llm.api.errors import ApiError, bad_request
from blade_llm.engine.client import Generation, Outputs
from blade_llm.engine.messages import RequestOutput
from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs
from blade_llm.text.answer import AnswerText
from blade_llm.text.answer_parser import AnswerParsing
from blade_llm.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One generated token with its log-probabilities and where its text begins in the answer."""

    token_id: int
    logprobs: TokenLogprobs
    text_offset: int


@dataclass(slots=True)
class Piece:
    """What one choice gained."""

    index: int
    text: str
    entries: list[TokenEntry]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    """The stop string, or the stop token's id unless that is the model's own end of sequence."""


PromptLogprobs: TypeAlias = list[TokenLogprobs | None]


class Choice:
    """One answer as it grows."""

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        sampling: SamplingParams,
        param: str = "prompt",
        parsing: AnswerParsing | None = None,
        asked_by: Mapping[str, str] | None = None,
    ) -> None:
        self._index = index
        self._param = param
        self._asked_by = asked_by or {}
        self._stop_ids = frozenset(sampling.stop_token_ids)
        self._max_tokens = sampling.max_tokens
        self._shows_stop = sampling.include_stop_str_in_output
        shown_ids = frozenset[int]() if parsing is None else parsing.shown_ids(tokenizer)
        self._text = AnswerText(tokenizer, prompt, sampling, shown_ids)
        self.reasoning = None if parsing is None else parsing.reasoning_counter(tokenizer)
        """Counts the reasoning tokens of a model that thinks."""
        self._entries: list[TokenEntry] = []
        """Not yet given out: a piece without text waits for the next one."""
        self.num_tokens = 0
        """Generated tokens, an end-of-sequence token included."""
        self.num_replayed = 0
        """So many of them by another engine."""
        self.finish_reason: str | None = None
        self._stop_reason: int | str | None = None
        self.first_token_at: float | None = None
        self.last_token_at = 0.0

    def add(self, output: RequestOutput) -> Piece | None:
        """Take one step's output. None when there is nothing to show yet. Raises :class:`ApiError`."""
        if self.finish_reason is not None:
            return None  # came while the engine was being told to stop
        if output.error is not None:
            raise self._refused(output.error)
        self.last_token_at = time.monotonic()
        if self.first_token_at is None:
            self.first_token_at = self.last_token_at
        if self.reasoning is not None:
            self.reasoning.add(output.token_ids)
        text = self._text_of(output)
        if not text and self.finish_reason is None:
            return None
        entries, self._entries = self._entries, []
        return Piece(self._index, text, entries, self.finish_reason, self._stop_reason)

    def ended_by(self, output: RequestOutput) -> RequestOutput:
        """``output``, the last of an answer that began elsewhere, with the end that its tokens are, if they are one."""
        token_ids = output.token_ids
        if token_ids and token_ids[-1] in self._stop_ids:
            stop = {"token_ids": token_ids[:-1], "finish_reason": "stop", "stop_token_id": token_ids[-1]}
            return msgspec.structs.replace(output, **stop)
        if self.num_tokens + len(token_ids) >= self._max_tokens:
            return msgspec.structs.replace(output, finish_reason="length")
        return output

    def replayed(self) -> None:
        """What came so far was generated elsewhere: its time is not ours."""
        self.num_replayed = self.num_tokens
        self.first_token_at = None

    def _text_of(self, output: RequestOutput) -> str:
        """What ``output`` adds to the text, up to a stop string; also counts and sets ``finish_reason``."""
        answer, text = self._text, ""
        for position, token_id in enumerate(output.token_ids):
            if output.logprobs is not None:
                self._entries.append(TokenEntry(token_id, output.logprobs[position], answer.length))
            text += answer.add(token_id)
            self.num_tokens += 1
            if answer.stopped:
                self.finish_reason = "stop"
                break
        else:
            if output.finish_reason is None:
                return text
            self.finish_reason = output.finish_reason
            if output.stop_token_id is not None:
                self.num_tokens += 1
                text += self._stop_at(output.stop_token_id)
        text += answer.finish()
        if answer.stopped:  # perhaps the last characters completed a stop string
            self.finish_reason, self._stop_reason = "stop", answer.stop_string
        return text

    def _refused(self, error: str) -> ApiError:
        """The engine's ``error``, which may begin with the field that it is about, or with ``busy``: then nobody is at
        fault."""
        word = error.partition(" ")[0].removesuffix(":")
        if word == "busy":
            return ApiError(503, error, kind="overloaded_error", code="busy", headers={"retry-after": "1"})
        if word not in SamplingParams.__struct_fields__:
            return bad_request(error, self._param)
        name = self._asked_by.get(word, word)
        return bad_request(name + error[len(word) :], name)

    def _stop_at(self, token_id: int) -> str:
        """The text of the token that ended the answer, where that is asked for."""
        if token_id in self._stop_ids:
            self._stop_reason = token_id
        return self._text.add(token_id) if self._shows_stop else ""


class PromptOnly(Choice):
    """An answer that holds the prompt and nothing else: what the engine draws is not taken."""

    def _text_of(self, output: RequestOutput) -> str:
        self.finish_reason = "length"
        return ""


@dataclass
class Answers:
    """All choices of one HTTP request, fed from its :class:`Generation`."""

    generation: Generation
    choices: list[Choice]
    prompt_tokens: int
    samples: int = 1
    """Choices per prompt; a prompt's tokens count once."""
    prompt_logprobs: dict[int, PromptLogprobs] = field(default_factory=dict)
    """Number of the prompt → its tokens' log-probabilities, once they came; None for the first token."""
    cached_tokens: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def finished(self) -> bool:
        # Asked after every step: no generator.
        for choice in self.choices:  # noqa: SIM110
            if choice.finish_reason is None:
                return False
        return True

    @property
    def completion_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self.choices)

    async def next(self) -> list[Piece]:
        """Wait for progress and return what there is to show (perhaps nothing yet).

        Raises what :meth:`Generation.get` and :meth:`add` raise.
        """
        return self.add(await self.generation.get())

    def add(self, outputs: Outputs) -> list[Piece]:
        """What ``outputs`` bring to show, one piece a choice. Raises :class:`ApiError` when the engine refuses."""
        if len(outputs) == 1:
            ((index, output),) = outputs
            piece = self._add(index, output)
            return [] if piece is None else [piece]
        pieces: dict[int, Piece] = {}
        for index, output in outputs:
            piece = self._add(index, output)
            if piece is None:
                continue
            if index in pieces:  # several steps piled up: one chunk
                earlier = pieces[index]
                piece = join((earlier, piece))
            pieces[index] = piece
        return list(pieces.values())

    def _add(self, index: int, output: RequestOutput) -> Piece | None:
        if output.cached_tokens and index % self.samples == 0:
            self.cached_tokens += output.cached_tokens
        if output.prompt_logprobs is not None:
            self.prompt_logprobs[index // self.samples] = output.prompt_logprobs
        piece = self.choices[index].add(output)
        if piece is not None and piece.finish_reason is not None and output.finish_reason is None:
            self.generation.stop(index)  # a stop string
        return piece

    def usage(self) -> dict[str, object]:
        """OpenAI's ``usage``."""
        details: dict[str, object] = {}
        if thinking := [choice for choice in self.choices if choice.reasoning is not None]:
            tokens = sum(min(choice.reasoning.count, choice.num_tokens) for choice in thinking if choice.reasoning)
            details["completion_tokens_details"] = {"reasoning_tokens": tokens}
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            **details,
        }


def join(pieces: Sequence[Piece]) -> Piece:
    """All pieces of one choice as one."""
    return Piece(
        pieces[0].index,
        "".join(piece.text for piece in pieces),
        [entry for piece in pieces for entry in piece.entries],
        pieces[-1].finish_reason,
        pieces[-1].stop_reason,
    )


def best(pieces: Sequence[Piece], n: int) -> list[Piece]:
    """The ``n`` answers to one prompt with the highest mean log-probability, best first."""

    def mean(piece: Piece) -> float:
        values = [entry.logprobs.chosen for entry in piece.entries]
        return sum(values) / len(values) if values else -inf  # an answer that says nothing is the last

    return sorted(pieces, key=mean, reverse=True)[:n]
