"""The adapters of an engine: names, host memory, requests that wait, and calls that are refused. Weights are read by a
stand-in that the tests hold up; everything else is real."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from engine_support.fake_core import make_core
from engine_support.fake_runner import FakeRunner

from blade_llm.config import EngineConfig
from blade_llm.engine.adapters import MOST_PENDING
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import AdapterReply, GenerateRequest, ListAdapters, LoadAdapter, UnloadAdapter
from blade_llm.lora.errors import AdapterError
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.request import RequestRefusedError


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

    def read(self, folder: Path) -> Weights:
        assert self.open.wait(10)
        self.reads.append(folder.name)
        if folder.name.startswith("broken"):
            raise AdapterError(f"adapter {folder}: NaN; train it again")
        if folder.name.startswith("odd"):
            raise RuntimeError("a disk error")
        return Weights(folder.name.encode().ljust(32))


@pytest.fixture
def disk() -> Disk:
    return Disk()


def core_of(disk: Disk, root: Path, *, slots: int = 2, host: int = 3, seqs: int = 4) -> EngineCore:
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
    core.serve_adapters(config, disk.read, {})
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


def test_names_tiers_and_the_least_recently_used(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    assert [load(core, tmp_path, name) for name in "abc"] == ["", "", ""]
    assert tiers(core) == dict.fromkeys("abc", "host")
    core.add(request("1", "a"))
    assert finish(core) == {"1": "length"}
    assert tiers(core) == {"a": "device", "b": "host", "c": "host"}
    assert load(core, tmp_path, "d") == ""
    assert tiers(core) == {"a": "device", "b": "disk", "c": "host", "d": "host"}
    core.add(request("2", "b"))  # read again, in the place of c
    assert finish(core) == {"2": "length"}
    assert tiers(core) == {"a": "device", "b": "device", "c": "disk", "d": "host"}
    assert disk.reads == ["a", "b", "c", "d", "b"]
    state = core.state(epoch="", sequence=0, draining=False)
    assert state.adapters == ("a", "b", "c", "d")
    assert len(state.adapter_digests) == 4


def test_pinned_adapters_stay(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path, host=2)
    assert load(core, tmp_path, "a", pinned=True) == ""
    assert "raise --max_cpu_loras" in load(core, tmp_path, "b", pinned=True)
    for name in "bcd":
        assert load(core, tmp_path, name) == ""
    assert tiers(core) == {"a": "host", "b": "disk", "c": "disk", "d": "host"}


def test_loading_delays_nobody_else(disk: Disk, tmp_path: Path) -> None:
    """While a disk is slow, requests with other adapters and without one are served, and who waits holds no slot."""
    core = core_of(disk, tmp_path, seqs=1)
    assert load(core, tmp_path, "a") == ""
    disk.open.clear()
    core.change_adapters(LoadAdapter(call_id=1, name="b", path=str(tmp_path / "adapters/b")), lambda reply: None)
    core.add(request("cold", "b"))
    core.add(request("warm", "a"))
    core.add(request("base", ""))
    ended: set[str] = set()
    while len(ended) < 2:
        ended |= {output.request_id for output in core.step() if output.finish_reason is not None}
    assert ended == {"warm", "base"}
    state = core.state(epoch="", sequence=0, draining=False)
    assert (state.running, state.waiting) == (0, 1)
    disk.open.set()
    assert finish(core) == {"cold": "length"}


def test_an_aborted_request_that_waits(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    disk.open.clear()
    core.add(request("1", str(tmp_path / "adapters/a")))
    core.add(request("2", str(tmp_path / "adapters/a/")))
    core.abort(["1"])
    disk.open.set()
    assert finish(core) == {"2": "length"}
    assert disk.reads == ["a"]


def test_unloading_in_use_drains(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    load(core, tmp_path, "a")
    core.add(request("running", "a", tokens=30))
    core.step()
    assert change(core, UnloadAdapter(call_id=1, name="a")).error is None
    with pytest.raises(RequestRefusedError, match="'a' does not exist"):
        core.add(request("late", "a"))
    assert core.adapters is not None
    core.adapters.load_now("a", str(tmp_path / "adapters/b"))  # its name is free
    core.add(request("other", "a"))
    assert finish(core) == {"running": "length", "other": "length"}
    load(core, tmp_path, "c")
    assert tiers(core) == {"a": "device", "c": "host"}
    error = change(core, UnloadAdapter(call_id=1, name="zzz")).error
    assert error is not None
    assert (error.kind, "loaded are a, c" in error.message) == ("unknown_adapter", True)


@pytest.mark.parametrize("name", ["broken", "odd"])
def test_what_cannot_be_read_disturbs_nobody(disk: Disk, tmp_path: Path, name: str) -> None:
    core = core_of(disk, tmp_path)
    load(core, tmp_path, "a")
    assert name in load(core, tmp_path, name)
    core.add(request("bad", str(tmp_path / "adapters" / name)))
    core.add(request("good", "a"))
    ends = finish(core)
    assert ends["good"] == "length"
    assert name in ends["bad"]
    assert tiers(core) == {"a": "device"}


def test_names_that_are_refused(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    assert "the base model's" in load(core, tmp_path, "tiny", "a")
    assert "give a name" in load(core, tmp_path, " ", "a")
    assert load(core, tmp_path, "x", "a") == load(core, tmp_path, "x", "a") == ""
    assert "unload it first" in load(core, tmp_path, "x", "b")
    with pytest.raises(RequestRefusedError, match=r"'nobody' does not exist; this server has tiny, x"):
        core.add(request("1", "nobody"))
    assert disk.reads == ["a"]


@pytest.mark.parametrize("path", ["adapters/../outside", "outside", "adapters/link", "adapters/inside", "/etc", "~/x"])
def test_paths_outside_of_the_roots(disk: Disk, tmp_path: Path, path: str) -> None:
    """By ``..``, by a link to a folder, and by a link to a file in a folder that is allowed itself."""
    core = core_of(disk, tmp_path)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/adapter_config.json").write_text("{}")
    (tmp_path / "adapters/link").symlink_to(tmp_path / "outside")
    (tmp_path / "adapters/inside").mkdir()
    (tmp_path / "adapters/inside/adapter_config.json").symlink_to(tmp_path / "outside/adapter_config.json")
    full = path if path[0] in "/~" else f"{tmp_path}/{path}"
    with pytest.raises(RequestRefusedError, match=r"not below a folder of --lora_allowed_roots"):
        core.add(request("1", full))
    message = LoadAdapter(call_id=1, name="x", path=full, only_allowed_roots=True)
    reply = change(core, message)
    assert reply.error is not None
    assert "--lora_allowed_roots" in reply.error.message
    assert not disk.reads


def test_ten_thousand_calls(disk: Disk, tmp_path: Path) -> None:
    """Few wait, the others are told to come again; who generates meanwhile is served."""
    core = core_of(disk, tmp_path)
    load(core, tmp_path, "a", pinned=True)
    disk.open.clear()
    replies: list[AdapterReply] = []
    started = time.monotonic()
    for number in range(10_000):
        message = LoadAdapter(call_id=number, name=f"n{number}", path=str(tmp_path / "adapters" / "b"))
        core.change_adapters(message, replies.append)
    assert time.monotonic() - started < 30
    busy = [reply for reply in replies if reply.error is not None and reply.error.kind == "overloaded"]
    assert len(replies) == len(busy) >= 10_000 - MOST_PENDING - 3
    core.add(request("1", "a"))
    outputs = [output for _ in range(20) for output in core.step()]
    assert [output.finish_reason for output in outputs][-1] == "length"
    disk.open.set()
    finish(core)
    assert len(replies) == 10_000
    assert len(core.state(epoch="", sequence=0, draining=False).adapters) == 10_001 - len(busy)


def test_who_waits_for_room_in_host_memory_gets_it(disk: Disk, tmp_path: Path) -> None:
    """All of it is used by adapters whose requests keep coming."""
    core = core_of(disk, tmp_path, slots=1, host=1, seqs=2)
    load(core, tmp_path, "a")
    core.add(request("0", "a", tokens=5))
    core.step()
    core.add(request("cold", str(tmp_path / "adapters/b")))
    ended: list[str] = []
    for number in range(1, 400):
        core.add(request(str(number), "a", tokens=5))
        for _ in range(3):
            ended += [output.request_id for output in core.step() if output.finish_reason is not None]
        if "cold" in ended:
            break
    assert "cold" in ended
    assert len(ended) < 200
    ended += finish(core)
    assert sorted(ended) == sorted(["cold", *map(str, range(number + 1))])
