"""The adapters of an engine: names, host memory, requests that wait, and calls that are refused. Weights are read by a
stand-in that the tests hold up; everything else is real."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from engine_support.adapter_core import Disk, change, core_of, finish, load, request, tiers

from blade_llm.engine.adapters.pipeline import MOST_PENDING
from blade_llm.engine.messages import AdapterReply, LoadAdapter, UnloadAdapter
from blade_llm.models.errors import ModelFilesError
from blade_llm.scheduling.request import RequestRefusedError


@pytest.fixture
def disk() -> Disk:
    return Disk()


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
    assert tiers(core) == {"a": "device", name: "disk"}
    assert core.state(epoch="", sequence=0, draining=False).adapters == ("a",)


def test_names_that_are_refused(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    assert "the base model's" in load(core, tmp_path, "tiny", "a")
    assert "give a name" in load(core, tmp_path, " ", "a")
    assert load(core, tmp_path, "x", "a") == load(core, tmp_path, "x", "a") == ""
    assert "unload it first" in load(core, tmp_path, "x", "b")
    with pytest.raises(RequestRefusedError, match=r"'nobody' does not exist; this server has tiny, x"):
        core.add(request("1", "nobody"))
    assert disk.reads == ["a"]


def test_two_of_one_name_at_the_start(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    assert core.adapters is not None
    core.adapters.load_now("a", str(tmp_path / "adapters/a"))
    with pytest.raises(ModelFilesError, match="two adapters called a"):
        core.adapters.load_now("a", str(tmp_path / "adapters/b"))
    with pytest.raises(ModelFilesError, match="tiny: the name is the base model's"):
        core.adapters.load_now("tiny", str(tmp_path / "adapters/b"))
    with pytest.raises(ModelFilesError, match=r"--lora_modules x=.*NaN"):
        core.adapters.load_now("x", str(tmp_path / "adapters/broken"))


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
