"""An engine that only counts: every live request gets a token a step, at a pace. For measuring what stands before it.

``python -m benchmarks.engine.token_source FLAGS`` is ``blade_llm_server`` with this engine. The environment says how
many seconds lie between two steps (``BENCH_STEP_SECONDS``).
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import Final

from blade_llm.cli.server import main
from blade_llm.config import EngineConfig
from blade_llm.engine.messages import EngineReady, GenerateRequest, RequestOutput
from blade_protocol.state import EngineState

STEP_SECONDS: Final = "BENCH_STEP_SECONDS"
MAX_MODEL_LEN: Final = 1 << 20
FIRST_ID: Final = 300
NUM_IDS: Final = 701
"""Tokens go round through so many ids: an ordinary mix of words and pieces of words."""


def token_at(position: int) -> int:
    """The id every request gets as its output token number ``position``."""
    return FIRST_ID + position * 37 % NUM_IDS


@dataclass(slots=True)
class _Live:
    left: int
    position: int = 0


class TokenSource:
    """What :class:`blade_llm.engine.process.EngineProcess` drives."""

    def __init__(self, model: str, interval: float) -> None:
        self._model = model
        self._interval = interval
        self._due = 0.0
        self._live: dict[str, _Live] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    def add(self, request: GenerateRequest) -> None:
        self._live[request.request_id] = _Live(request.sampling.max_tokens)

    def abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._live.pop(request_id, None)

    def step(self) -> list[RequestOutput]:
        """Wait for the next step's time, then one token each."""
        now = time.monotonic()
        if now < self._due:
            time.sleep(self._due - now)
        self._due = max(now, self._due) + self._interval
        outputs, ended = [], []
        for request_id, live in self._live.items():
            token = token_at(live.position)
            live.position += 1
            live.left -= 1
            if live.left:
                outputs.append(RequestOutput(request_id=request_id, token_ids=[token]))
            else:
                ended.append(request_id)
                outputs.append(RequestOutput(request_id=request_id, token_ids=[token], finish_reason="length"))
        for request_id in ended:
            del self._live[request_id]
        return outputs

    def state(self, *, epoch: str, sequence: int, draining: bool) -> EngineState:
        return EngineState(
            model=self._model, revision="", ready=True, draining=draining, running=len(self._live), waiting=0,
            kv_blocks_total=1, kv_blocks_free=1, prompt_tokens_total=0, cached_tokens_total=0,
            generation_tokens_total=0, preemptions_total=0, epoch=epoch, sequence=sequence,
        )  # fmt: skip

    def ready(self, state: EngineState) -> EngineReady:
        return EngineReady(max_model_len=MAX_MODEL_LEN, device="none", dtype="none", timings={}, state=state)


def build_core(config: EngineConfig) -> TokenSource:
    """What the engine process builds."""
    return TokenSource(config.served_names[0], float(os.environ[STEP_SECONDS]))


if __name__ == "__main__":
    sys.exit(main(build="benchmarks.engine.token_source:build_core"))
