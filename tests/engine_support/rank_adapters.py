"""Adapters of ranks that are threads of one process: what rank 0 sends is handled by each of the others at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from engine_support.feature_load import core_for
from engine_support.thread_ranks import ThreadRanks

from blade_llm.config import EngineConfig
from blade_llm.engine.core import EngineCore
from blade_llm.engine.ranks.adapter_messages import FetchAdapterMessage, ForgetAdapterMessage, ReadAdapterMessage
from blade_llm.engine.ranks.adapter_reads import RankAdapters
from blade_llm.engine.ranks.adapters import AdapterRanks
from blade_llm.engine.ranks.messages import decode


class LocalRanks:
    """Implements :class:`blade_llm.engine.ranks.adapters.RankMessages`."""

    def __init__(self, others: Sequence[RankAdapters]) -> None:
        self._others = others
        self._replies: deque[bytes] = deque()

    def send(self, payload: bytes) -> None:
        message = decode(payload)
        assert isinstance(message, FetchAdapterMessage | ReadAdapterMessage | ForgetAdapterMessage)
        for other in self._others:
            other.handle(message)

    def receive(self) -> bytes | None:
        for other in self._others:
            self._replies.extend(other.take_replies())
        return self._replies.popleft() if self._replies else None

    def name_of(self, rank: int) -> str:
        return f"rank {rank}"

    def raise_if_lost(self) -> None:
        pass


def ranked_core(config: EngineConfig, **options: Any) -> tuple[EngineCore, ThreadRanks]:
    """An engine of ranks that serve adapters; ``options``: of :func:`core_for`."""
    ranks = ThreadRanks(config)
    own, *others = [runner.adapters for runner in ranks.runners]
    assert own is not None
    local = LocalRanks(
        [
            RankAdapters(rank, adapters.reader(), cast("Any", adapters.loaded))
            for rank, adapters in enumerate(others, 1)
            if adapters is not None
        ]
    )
    core = core_for(config, ranks, **options)  # type: ignore[arg-type]
    messages = AdapterRanks(local, config.num_ranks)
    core.serve_adapters(config, own.reader(), cast("Any", own.loaded), messages)
    return core, ranks


def load_everywhere(ranks: ThreadRanks, folder: Path, number: int) -> None:
    """Each rank reads its part, without an engine."""
    for runner in ranks.runners:
        assert runner.adapters is not None
        runner.adapters.loaded[number] = runner.adapters.reader().read(folder)
