"""Random calls and requests on few adapters: each call is answered once, each request ends once, host memory never
holds more than it may, and nothing is left over."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from engine_support.adapter_core import Disk, core_of, request
from engine_support.disk_ranks import DiskRanks, other_weights

from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import AdapterReply, LoadAdapter, UnloadAdapter
from blade_llm.engine.ranks.adapters import AdapterRanks
from blade_llm.sampling.masks import DraftMasks
from blade_llm.scheduling.plan import PendingForward, StepPlan
from blade_llm.scheduling.request import RequestRefusedError

HOST = 3
NAMES = ("x", "y", "z", "a")
FOLDERS = ("a", "b", "c", "d", "broken", "nowhere", "a-copy")


@pytest.mark.parametrize("seed", range(40))
def test_whatever_comes(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To one rank, or to three, of which others have slow and broken disks."""
    rng = random.Random(seed)
    others = DiskRanks() if seed % 2 else None
    disk = Disk()
    monkeypatch.setattr("blade_llm.engine.adapters.paths.resolve_model", lambda path: tmp_path / "adapters" / path[-1])
    ranks = None if others is None else AdapterRanks(others, 3)
    core = core_of(disk, tmp_path, slots=2, host=HOST, ranks=ranks)
    _check_plans(core, others)
    (tmp_path / "adapters/a-copy").mkdir()
    assert core.adapters is not None
    calls, replies, sent, ends = 0, Counter[int](), set[str](), Counter[str]()

    def reply(message: AdapterReply) -> None:
        replies[message.call_id] += 1

    def step() -> None:
        for output in core.step():
            ends[output.request_id] += output.finish_reason is not None
        assert len(held()) <= HOST
        assert sum(adapter.pinned for adapter in held().values()) < HOST

    def held() -> dict[int, Any]:
        assert core.adapters is not None
        return core.adapters._host._held

    for number in range(300):
        match rng.choice("llluurrrrraobsss"):
            case "l":
                path = f"s3://bucket/{rng.choice('abc')}"
                if rng.random() < 0.8:
                    path = str(tmp_path / "adapters" / rng.choice(FOLDERS))
                options = {name: rng.random() < 0.4 for name in ("pinned", "replace", "register_only", "wait")}
                core.change_adapters(LoadAdapter(call_id=calls, name=rng.choice(NAMES), path=path, **options), reply)
                calls += 1
            case "u":
                core.change_adapters(UnloadAdapter(call_id=calls, name=rng.choice(NAMES)), reply)
                calls += 1
            case "r":
                adapter = rng.choice([*NAMES, str(tmp_path / "adapters" / rng.choice(FOLDERS)), ""])
                try:
                    core.add(request(str(number), adapter, tokens=rng.randint(1, 20)))
                    sent.add(str(number))
                except RequestRefusedError:
                    pass
            case "a" if sent - set(ends):
                gone = rng.choice(sorted(sent - set(ends)))
                core.abort([gone])
                sent.discard(gone)
            case "o":
                gate = rng.choice([disk, *(others.disks if others else ())]).open
                (gate.clear if gate.is_set() else gate.set)()
            case "b" if others:
                instead = rng.choice(others.disks).instead
                if instead:
                    instead.clear()
                else:
                    instead[rng.choice("abcd")] = other_weights
            case _ if core.has_work:
                step()
    for each in (disk, *(others.disks if others else ())):
        each.open.set()
    for _ in range(20_000):
        if not core.has_work:
            break
        step()
    assert not core.has_work
    assert replies == Counter(range(calls))
    assert {name for name, count in ends.items() if count} >= sent
    assert max(ends.values(), default=0) <= 1
    infos = {info.name: info for info in core.adapters.infos()}
    assert {adapter.name for adapter in held().values()} <= set(infos)
    assert all(adapter.named for adapter in held().values())
    assert not any(info.requests for info in infos.values())
    assert not any(info.state == "loading" for info in infos.values())
    assert sum(info.tier != "disk" for info in infos.values()) == len(held())
    if others is not None:
        for loaded in others.loaded:
            assert set(loaded) == set(held())


def _check_plans(core: EngineCore, others: DiskRanks | None) -> None:
    """Every rank has what a plan names when it is sent."""
    launch = core._runner.launch_forward

    def checked(plan: StepPlan, draft_masks: DraftMasks | None = None) -> PendingForward:
        for loaded in () if others is None else others.loaded:
            assert {update.adapter for update in plan.adapter_updates} <= set(loaded)
        return launch(plan, draft_masks)

    core._runner.launch_forward = checked  # type: ignore[method-assign]
