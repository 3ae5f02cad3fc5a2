"""Random calls and requests on few adapters: each call is answered once, each request ends once, host memory never
holds more than it may, and nothing is left over."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from engine_support.adapter_core import Disk, core_of, request

from blade_llm.engine.messages import AdapterReply, LoadAdapter, UnloadAdapter
from blade_llm.scheduling.request import RequestRefusedError

HOST = 3
NAMES = ("x", "y", "z", "a")
FOLDERS = ("a", "b", "c", "d", "broken", "nowhere", "a-copy")


@pytest.mark.parametrize("seed", range(40))
def test_whatever_comes(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    disk = Disk()
    monkeypatch.setattr("blade_llm.engine.adapters.paths.resolve_model", lambda path: tmp_path / "adapters" / path[-1])
    core = core_of(disk, tmp_path, slots=2, host=HOST)
    (tmp_path / "adapters/a-copy").mkdir()
    assert core.adapters is not None
    calls, replies, sent, ends = 0, Counter[int](), set[str](), Counter[str]()

    def reply(message: AdapterReply) -> None:
        replies[message.call_id] += 1

    def step() -> None:
        for output in core.step():
            ends[output.request_id] += output.finish_reason is not None
        assert len(held()) <= HOST

    def held() -> dict[int, Any]:
        assert core.adapters is not None
        return core.adapters._host._held

    for number in range(300):
        match rng.choice("llluurrrrraosss"):
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
                (disk.open.clear if disk.open.is_set() else disk.open.set)()
            case _ if core.has_work:
                step()
    disk.open.set()
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
