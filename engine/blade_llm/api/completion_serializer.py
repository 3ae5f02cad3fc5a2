"""Text completions as bytes: whole responses, and the events of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from blade_llm.api.generation.generate import encode, event, response_head
from blade_llm.api.generation.logprobs import CompletionLogprobs, TokenNames, prompt_logprobs
from blade_llm.api.generation.prompt_tokens import LONG_IDS
from blade_llm.api.generation.result import ChoiceUpdate, PromptLogprobs
from blade_llm.text.detokenizer import make_detokenizer
from blade_llm.text.tokenizer import Tokenizer

_AFTER_TEXT: Final = b',"logprobs":null,"finish_reason":null}]}\n\n'


class CompletionSerializer:
    """Writes text completions. What every chunk has in common is encoded once.

    Args:
        prompts: token ids of each prompt, of which every one has ``n`` choices.
        echo: put the prompt before the output, in ``logprobs`` too.
    """

    def __init__(
        self,
        response_id: str,
        model: str,
        names: TokenNames,
        *,
        prompts: Sequence[list[int]] = (),
        n: int = 1,
        echo: bool = False,
        with_logprobs: bool = False,
        with_prompt_logprobs: bool = False,
        skip_special_tokens: bool = True,
        created: int | None = None,
        with_token_ids: bool = False,
    ) -> None:
        self._head = response_head(response_id, model, created)
        self._chunk_head = {**self._head, "object": "text_completion"}
        self._names = names
        self._prompts = prompts
        self._n = n
        self._echoes = [
            Echo(names.tokenizer, prompt, skip_special_tokens, with_offsets=with_logprobs)
            for prompt in (prompts if echo else ())
        ]
        self._with_logprobs = with_logprobs
        self._with_token_ids = with_token_ids
        self._told: set[int] = set()
        """Streamed choices that have had their prompt's token ids."""
        self._with_prompt_logprobs = with_prompt_logprobs
        self.prompt_logprobs: dict[int, PromptLogprobs] = {}
        self._before_index = b"data: " + encode(self._chunk_head)[:-1] + b',"choices":[{"index":'

    def head(self) -> dict[str, Any]:
        return self._head

    def object_name(self) -> str:
        return "text_completion"

    def extra_fields(self) -> dict[str, Any]:
        return {}

    def choice(self, update: ChoiceUpdate) -> dict[str, Any]:
        choice = {
            "index": update.index,
            "text": self._echo_text(update.index) + update.text,
            "logprobs": self._logprobs(update, with_echo=True),
            "finish_reason": update.finish_reason,
            "stop_reason": update.stop_reason,
        }
        if self._with_prompt_logprobs:
            number = update.index // self._n
            found = self.prompt_logprobs[number]
            choice["prompt_logprobs"] = prompt_logprobs(self._prompts[number], found, self._names)
        return choice | self._ids(update, whole=True)

    @property
    def opens_choices(self) -> bool:
        return bool(self._echoes)

    def first_chunk(self, index: int) -> bytes:
        if not self._echoes:
            return b""
        update = ChoiceUpdate(index, self._echo_text(index), [])
        return self._event(update, self._logprobs(update, with_echo=True))

    def chunk(self, update: ChoiceUpdate) -> bytes:
        if update.finish_reason is None and not self._with_logprobs and not self._with_token_ids:  # nearly all of them
            return b'%b%d,"text":%b%b' % (self._before_index, update.index, encode(update.text), _AFTER_TEXT)
        return self._event(update, self._logprobs(update, with_echo=False))

    def usage_chunk(self, usage: dict[str, object]) -> bytes:
        return event({**self._chunk_head, "choices": [], "usage": usage})

    def _event(self, update: ChoiceUpdate, logprobs: dict[str, Any] | None) -> bytes:
        ids = self._ids(update, whole=False)
        return b"%b%d,\"text\":%b,\"logprobs\":%b,\"finish_reason\":%b%b}]}\n\n" % (
            self._before_index, update.index, encode(update.text), encode(logprobs), encode(update.finish_reason),
            b"," + encode(ids)[1:-1] if ids else b"",
        )  # fmt: skip

    def _ids(self, update: ChoiceUpdate, *, whole: bool) -> dict[str, Any]:
        """The token ids of a choice, and once those of its prompt."""
        if not self._with_token_ids:
            return {}
        index = update.index
        first = whole or index not in self._told
        self._told.add(index)
        prompt = {"prompt_token_ids": self._prompts[index // self._n]} if first else {}
        return {"token_ids": update.token_ids, **prompt}

    def _echo_text(self, index: int) -> str:
        return self._echoes[index // self._n].text if self._echoes else ""

    def _logprobs(self, update: ChoiceUpdate, *, with_echo: bool) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        found, number, before = CompletionLogprobs(self._names), update.index // self._n, 0
        if self._echoes:
            echo = self._echoes[number]
            before = len(echo.text)
            if with_echo:
                for token_id, logprobs, offset in zip(
                    self._prompts[number], self.prompt_logprobs[number], echo.offsets, strict=True
                ):
                    found.add(token_id, logprobs, offset)
        entries = update.entries if update.stop_entry is None else [*update.entries, update.stop_entry]
        for entry in entries:
            found.add(entry.token_id, entry.logprobs, before + entry.text_offset, entry.text)
        return found.value()


async def make_completion_serializer(
    *arguments: Any, prompts: Sequence[list[int]], echo: bool, **options: Any
) -> CompletionSerializer:
    """A :class:`CompletionSerializer`, made off the event loop when there is much to echo."""

    def make() -> CompletionSerializer:
        return CompletionSerializer(*arguments, prompts=prompts, echo=echo, **options)

    return await asyncio.to_thread(make) if echo and sum(map(len, prompts)) > LONG_IDS else make()


class Echo:
    """A prompt's text as a response echoes it and, ``with_offsets``, where each of its tokens begins in it."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: list[int], skip_special_tokens: bool, *, with_offsets: bool
    ) -> None:
        self.offsets: list[int] = []
        if not with_offsets:
            self.text = tokenizer.decode(prompt, skip_special_tokens=skip_special_tokens)
            return
        detokenizer = make_detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        updates: list[str] = []
        length = 0
        for token_id in prompt:
            self.offsets.append(length)
            updates.append(detokenizer.add(token_id))
            length += len(updates[-1])
        self.text = "".join([*updates, detokenizer.finish()])
