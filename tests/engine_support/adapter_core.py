"""An engine core with adapters whose weights a stand-in reads, which tests hold up; everything else is real."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from engine_support.fake_core import make_core
from engine_support.fake_runner import FakeRunner

from blade_llm.config import EngineConfig
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import (
    AdapterInfo,
    AdapterReply,
    GenerateRequest,
    ListAdapters,
    LoadAdapter,
    UnloadAdapter,
)
from blade_llm.engine.ranks.adapters import AdapterRanks
from blade_llm.lora.errors import AdapterError
from blade_llm.sampling.parameters import SamplingParams


@dataclass(frozen=True)
class Weights:
    digest: bytes
    rank: int = 4
    nbytes: int = 100


class Disk:
    """Reads folders when it is let."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.reads: list[str] = []
        self.checks: list[str] = []

    def read(self, folder: Path) -> Weights:
        assert self.open.wait(10)
        self.reads.append(folder.name)
        if folder.name.startswith("broken"):
            raise AdapterError(f"adapter {folder}: NaN; train it again")
        if folder.name.startswith("odd"):
            raise RuntimeError("a disk error")
        return Weights(folder.name.split("-")[0].encode().ljust(32))

    def check(self, folder: Path) -> int:
        assert self.open.wait(10)
        self.checks.append(folder.name)
        if folder.name.startswith("bad header"):
            raise AdapterError(f"adapter {folder}: its rank 64 is more than --max_lora_rank 16")
        return 4


def core_of(
    disk: Disk, root: Path, *, slots: int = 2, host: int = 3, seqs: int = 4, ranks: AdapterRanks | None = None
) -> EngineCore:
    for name in [*"abcdefgh", "broken", "odd"]:
        (root / "adapters" / name).mkdir(parents=True, exist_ok=True)
    config = EngineConfig(
        model=str(root),
        served_names=("tiny",),
        enable_lora=True,
        max_loras=slots,
        max_cpu_loras=host,
        max_num_seqs=seqs,
        lora_allowed_roots=(str(root / "adapters"),),
    )
    runner = FakeRunner(max_num_seqs=seqs)
    core = make_core(runner, max_adapters=slots)
    core.serve_adapters(config, disk, {}, ranks)
    return core


def request(name: str, adapter: str, tokens: int = 3) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=1, temperature=0.5)
    return GenerateRequest(request_id=name, prompt_token_ids=[5, 6, 7], sampling=sampling, adapter=adapter)


def change(core: EngineCore, message: LoadAdapter | UnloadAdapter | ListAdapters) -> AdapterReply:
    replies: list[AdapterReply] = []
    core.change_adapters(message, replies.append)
    while not replies:
        core.step()
    return replies[0]


def load(core: EngineCore, root: Path, name: str, folder: str = "", **options: bool) -> str:
    """Why it was not loaded; empty: it was."""
    path = str(root / "adapters" / (folder or name))
    reply = change(core, LoadAdapter(call_id=1, name=name, path=path, **options))
    return "" if reply.error is None else str(reply.error)


def finish(core: EngineCore) -> dict[str, str]:
    """Each request's end: its finish reason, or its error."""
    ends = {}
    while core.has_work:
        for output in core.step():
            if output.finish_reason is not None:
                ends[output.request_id] = str(output.error) if output.error else output.finish_reason
    return ends


def tiers(core: EngineCore) -> dict[str, str]:
    assert core.adapters is not None
    return {info.name: info.tier for info in core.adapters.infos()}


def info(core: EngineCore, name: str) -> AdapterInfo:
    assert core.adapters is not None
    (found,) = (each for each in core.adapters.infos() if each.name == name)
    return found
