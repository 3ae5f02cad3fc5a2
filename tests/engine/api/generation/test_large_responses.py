"""Large outputs are put together off the event loop."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from engine_support.tiny_text import write_tokenizer

from blade_llm.api import completion_serializer
from blade_llm.api.completion_serializer import CompletionSerializer, Echo
from blade_llm.api.generation.generate import _whole_response
from blade_llm.api.generation.logprobs import TokenNames
from blade_llm.api.generation.result import ChoiceUpdate
from blade_llm.api.generation.search import Search
from blade_llm.sampling.parameters import TokenLogprobs
from blade_llm.text.tokenizer import Tokenizer


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer(write_tokenizer(tmp_path))


@pytest.mark.parametrize(("length", "aside"), [(20_001, True), (20, False)])
async def test_a_long_echo(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, length: int, aside: bool) -> None:
    threads: list[threading.Thread] = []

    class Noted(Echo):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            threads.append(threading.current_thread())
            super().__init__(*arguments, **options)

    monkeypatch.setattr(completion_serializer, "Echo", Noted)
    await completion_serializer.make_completion_serializer(
        "cmpl-1", "m", TokenNames(tokenizer), prompts=[[40] * length], echo=True, with_logprobs=True
    )
    assert (threads != [threading.main_thread()]) is aside


class _FinishedResult:
    """One choice, finished at once."""

    def __init__(self, prompt_tokens: int) -> None:
        self.choices = [0]
        self.finished = False
        self.at_end = None
        self.prompt_logprobs = {0: [None, *[TokenLogprobs(-1.0, (), ())] * (prompt_tokens - 1)]}

    async def next(self) -> list[ChoiceUpdate]:
        self.finished = True
        return [ChoiceUpdate(0, "a", [], "stop")]

    def usage(self) -> dict[str, object]:
        return {}


class _Context:
    """Measures nothing."""

    @property
    def metrics(self) -> _Context:
        return self

    def observe(self, result: object) -> None:
        pass


@pytest.mark.parametrize(("length", "aside"), [(1_001, True), (20, False)])
async def test_many_logprobs_of_a_prompt(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, length: int, aside: bool
) -> None:
    threads: list[threading.Thread] = []
    choice = CompletionSerializer.choice

    def noted(self: CompletionSerializer, update: ChoiceUpdate) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return choice(self, update)

    monkeypatch.setattr(CompletionSerializer, "choice", noted)
    serializer = CompletionSerializer(
        "cmpl-1", "m", TokenNames(tokenizer), prompts=[[40] * length], with_prompt_logprobs=True
    )
    result: Any = _FinishedResult(length)
    serializer.prompt_logprobs = result.prompt_logprobs
    context: Any = _Context()
    response = await _whole_response(context, result, serializer, Search())
    assert (threads != [threading.main_thread()]) is aside
    assert len(json.loads(bytes(response.body))["choices"][0]["prompt_logprobs"]) == length
