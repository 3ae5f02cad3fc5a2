"""Samples: prompts and the wanted lengths of their responses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from blade_llm.benchmark.errors import BenchmarkError
from blade_llm.benchmark.workload.lengths import LONGEST, usual_length
from blade_llm.benchmark.workload.words import PromptMaker

Messages = Sequence[dict[str, Any]]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Sample:
    """One request to be."""

    prompt: str | Messages
    output_tokens: int
    input_tokens: int = 0
    """Prompt tokens as far as known beforehand; the server's own count wins."""

    def body(self, endpoint: str) -> dict[str, Any]:
        """The prompt as a request's fields. Raises :class:`BenchmarkError` for chat messages at ``completions``."""
        if endpoint == "chat":
            chat = isinstance(self.prompt, str)
            return {"messages": [{"role": "user", "content": self.prompt}] if chat else self.prompt}
        if not isinstance(self.prompt, str):
            raise BenchmarkError("chat messages cannot be sent to the completions endpoint; leave out --endpoint")
        return {"prompt": self.prompt}


def synthetic(lengths: Iterator[tuple[int, int]], maker: PromptMaker, random_source: random.Random) -> Iterator[Sample]:
    """Random words of the given lengths (tokens in, tokens out), without end."""
    for tokens_in, tokens_out in lengths:
        yield Sample(maker.prompt(tokens_in, random_source), tokens_out, tokens_in)


def read_sharegpt(file: Path) -> list[tuple[str, str]]:
    """First question and first response of each conversation of a file in ShareGPT's format.

    Raises :class:`BenchmarkError`.
    """
    conversations = _read(file, lambda data: msgspec.json.decode(data, type=list[dict[str, Any]]))
    turns = [conversation.get("conversations") or [] for conversation in conversations]
    found = [(str(two[0].get("value", "")), str(two[1].get("value", ""))) for two in turns if len(two) >= 2]
    if not found:
        raise BenchmarkError(
            f"{file} has no conversation of two turns; ShareGPT's format is "
            '[{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}]'
        )
    return found


def pick_sharegpt(
    turns: Sequence[tuple[str, str]],
    count: Callable[[str], int],
    longest: int = LONGEST,
    output_tokens: int | None = None,
) -> list[Sample]:
    """The conversations of customary length; responses as long as ShareGPT's, or ``output_tokens``.

    ``count`` counts (or estimates) tokens. Raises :class:`BenchmarkError` when none is left.
    """
    samples = []
    for question, answer in turns:
        tokens_in, tokens_out = count(question), output_tokens or count(answer)
        if usual_length(tokens_in, tokens_out, longest):
            samples.append(Sample(question, tokens_out, tokens_in))
    if not samples:
        raise BenchmarkError(f"no conversation has at most {longest} tokens; raise --max_len")
    return samples


def read_prompts(file: Path, count: Callable[[str], int], output_tokens: int) -> list[Sample]:
    """One prompt a line: plain text, or with ``.jsonl`` a string, ``{"prompt": …}`` or ``{"messages": […]}``.

    ``"max_tokens"`` on a line of JSON goes before ``output_tokens``. Raises :class:`BenchmarkError`.
    """
    lines = [line for line in _read(file, lambda data: data.decode("utf-8")).splitlines() if line.strip()]
    if not lines:
        raise BenchmarkError(f"{file} is empty; write one prompt a line")
    if file.suffix != ".jsonl":
        return [Sample(line, output_tokens, count(line)) for line in lines]
    return [_line(file, number, line, count, output_tokens) for number, line in enumerate(lines, 1)]


def endless(samples: Sequence[Sample], random_source: random.Random) -> Iterator[Sample]:
    """Repeat samples without end, in random order."""
    order = random_source.sample(samples, len(samples))
    return itertools.cycle(order)


def _line(file: Path, number: int, line: str, count: Callable[[str], int], output_tokens: int) -> Sample:
    try:
        value = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise BenchmarkError(f"{file}, prompt {number}: {error}") from None
    fields = value if isinstance(value, dict) else {"prompt": value}
    prompt = fields.get("prompt", fields.get("messages"))
    tokens_out = fields.get("max_tokens", output_tokens)
    if isinstance(prompt, str) and isinstance(tokens_out, int):
        return Sample(prompt, tokens_out, count(prompt))
    if isinstance(prompt, list) and all(isinstance(turn, dict) for turn in prompt) and isinstance(tokens_out, int):
        return Sample(prompt, tokens_out, sum(count(str(turn.get("content", ""))) for turn in prompt))
    raise BenchmarkError(f'{file}, prompt {number}: neither a string nor {{"prompt": …}} nor {{"messages": […]}}')


def _read(file: Path, parse: Callable[[bytes], _T]) -> _T:
    try:
        return parse(file.read_bytes())
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise BenchmarkError(f"{file} cannot be read: {error}") from None
