"""An engine core that answers every kind of message fronts send, around the fake runner.

Beams, prompt log-probabilities and embeddings are made up here, so that the HTTP side's tests need nothing of the
engine that makes them: the best beam is what a greedy request would get, the second one's text differs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest, RequestOutput
from blade_llm.sampling.parameters import TokenLogprobs

HIDDEN = 8
"""Size of the fake model's states."""


def fake_embedding(token_ids: list[int], pooling: str) -> list[float]:
    """Not of length 1, and different for other tokens and another pooling."""
    last = token_ids[-1] if pooling == "last" else sum(token_ids) // len(token_ids)
    return [float(last + position) for position in range(HIDDEN)]


def fake_prompt_logprobs(token_ids: list[int], count: int) -> list[TokenLogprobs | None]:
    """The token itself is the second likely one."""
    return [
        None,
        *(TokenLogprobs(-1.0, (token_id + 1, token_id)[:count], (-0.5, -1.0)[:count]) for token_id in token_ids[1:]),
    ]


class ApiCore(EngineCore):
    """Takes apart what the engine below does not know."""

    _ready_outputs: list[RequestOutput]
    _first: dict[str, list[TokenLogprobs | None]]

    def add(self, message: GenerateRequest) -> None:
        self._prepare()
        sampling = message.sampling
        if message.pooling:
            values = fake_embedding(message.prompt_token_ids, message.pooling)
            self._ready_outputs.append(
                RequestOutput(
                    request_id=message.request_id,
                    embedding=struct.pack(f"<{HIDDEN}f", *values),
                    finish_reason="stop",
                )
            )
            return
        if sampling.prompt_logprobs is not None:
            found = fake_prompt_logprobs(message.prompt_token_ids, sampling.prompt_logprobs)
            self._first[message.request_id] = found
        alone = msgspec.structs.replace(sampling, beam_width=0, prompt_logprobs=None)
        if not sampling.beam_width:
            super().add(msgspec.structs.replace(message, sampling=alone))
            return
        for index, request_id in enumerate([message.request_id, *message.sibling_ids]):
            own = msgspec.structs.replace(alone, temperature=float(index), seed=index)
            super().add(msgspec.structs.replace(message, request_id=request_id, sibling_ids=[], sampling=own))

    def abort(self, request_ids: Iterable[str]) -> None:
        self._prepare()
        ids = set(request_ids)
        self._ready_outputs = [output for output in self._ready_outputs if output.request_id not in ids]
        super().abort(ids)

    @property
    def has_work(self) -> bool:
        self._prepare()
        return bool(self._ready_outputs) or super().has_work

    def step(self) -> list[RequestOutput]:
        self._prepare()
        outputs, self._ready_outputs = self._ready_outputs, []
        for output in super().step():
            found = self._first.pop(output.request_id, None)
            outputs.append(output if found is None else msgspec.structs.replace(output, prompt_logprobs=found))
        return outputs

    def _prepare(self) -> None:
        if not hasattr(self, "_first"):
            self._ready_outputs, self._first = [], {}
