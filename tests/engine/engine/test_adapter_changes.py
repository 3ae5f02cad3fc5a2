"""Loading without waiting, registering, replacing and failing: what calls get, what the list says, and that requests
are served meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from engine_support.adapter_core import Disk, change, core_of, finish, info, load, request, tiers

from blade_llm.engine.adapters import files
from blade_llm.engine.adapters.names import MOST_FAILED, MOST_NAMES
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import AdapterReply, LoadAdapter, UnloadAdapter
from blade_llm.lora.errors import AdapterError
from blade_llm.models.errors import ModelFilesError
from blade_llm.scheduling.request import RequestRefusedError


@pytest.fixture
def disk() -> Disk:
    return Disk()


def listed(core: EngineCore) -> dict[str, str]:
    assert core.adapters is not None
    return {each.name: each.state for each in core.adapters.infos()}


def answering(core: EngineCore) -> tuple[str, ...]:
    return core.state(epoch="", sequence=0, draining=False).adapters


def start(core: EngineCore, root: Path, name: str, folder: str = "", **options: bool) -> AdapterReply:
    """The reply to a call that does not wait."""
    replies: list[AdapterReply] = []
    path = folder if "://" in folder else str(root / "adapters" / (folder or name))
    core.change_adapters(LoadAdapter(call_id=7, name=name, path=path, wait=False, **options), replies.append)
    (reply,) = replies
    assert reply.call_id == 7
    return reply


def test_a_call_that_does_not_wait(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    disk.open.clear()
    reply = start(core, tmp_path, "a")
    (one,) = reply.adapters
    assert (reply.pending, one.name, one.state, one.tier, one.digest) == (True, "a", "loading", "disk", "")
    assert answering(core) == ()
    core.add(request("1", "a"))  # waits for it
    disk.open.set()
    assert finish(core) == {"1": "length"}
    assert listed(core) == {"a": "loaded"}
    again = start(core, tmp_path, "a")
    assert (again.pending, again.adapters[0].state, disk.reads) == (False, "loaded", ["a"])


def test_a_failure_is_in_the_list_until_the_name_is_loaded_or_unloaded(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    start(core, tmp_path, "x", "broken")
    finish(core)
    one = info(core, "x")
    assert (one.state, one.tier, one.digest, answering(core)) == ("failed", "disk", "", ())
    assert "NaN; train it again" in one.reason
    with pytest.raises(RequestRefusedError, match=r"'x' could not be loaded: .*NaN"):
        core.add(request("1", "x"))
    assert load(core, tmp_path, "x", "a") == ""  # a failed one holds no name
    assert (info(core, "x").state, info(core, "x").reason) == ("loaded", "")
    assert "NaN" in load(core, tmp_path, "y", "broken")
    assert change(core, UnloadAdapter(call_id=1, name="y")).error is None
    assert listed(core) == {"x": "loaded"}


def test_failures_are_forgotten_the_oldest_first(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    for number in range(MOST_FAILED + 5):
        load(core, tmp_path, f"n{number:03}", "broken")
    load(core, tmp_path, "a")
    assert len(listed(core)) == MOST_FAILED + 1
    assert "n004" not in listed(core)
    assert "n005" in listed(core)


def test_a_registered_adapter_is_read_for_its_first_request(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    assert load(core, tmp_path, "a", register_only=True) == ""
    one = info(core, "a")
    assert (one.state, one.tier, one.rank, one.digest, disk.reads) == ("registered", "disk", 4, "", [])
    state = core.state(epoch="", sequence=0, draining=False)
    assert (state.adapters, state.adapter_digests, state.adapter_tiers) == (("a",), ("",), ("disk",))
    assert state.max_adapters == 3
    assert load(core, tmp_path, "a", register_only=True) == ""
    assert disk.checks == ["a"]
    core.add(request("1", "a"))
    assert finish(core) == {"1": "length"}
    assert (listed(core), tiers(core), disk.reads) == ({"a": "loaded"}, {"a": "device"}, ["a"])
    assert core.state(epoch="", sequence=0, draining=False).adapter_tiers == ("device",)


def test_a_registered_adapter_is_read_when_a_call_wants_it(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    load(core, tmp_path, "a", register_only=True)
    assert load(core, tmp_path, "a") == ""
    assert (listed(core), tiers(core)) == ({"a": "loaded"}, {"a": "host"})


def test_registering_what_is_wrong(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    (tmp_path / "adapters/bad header").mkdir()
    assert "--max_lora_rank" in load(core, tmp_path, "x", "bad header", register_only=True)
    assert "does not exist" in load(core, tmp_path, "y", "nowhere", register_only=True)
    assert listed(core) == {"x": "failed", "y": "failed"}
    assert load(core, tmp_path, "z", "broken", register_only=True) == ""  # only its weights show that
    core.add(request("1", "z"))
    assert "NaN" in finish(core)["1"]
    assert (info(core, "z").state, answering(core)) == ("failed", ())


def test_a_thousand_registered_adapters_are_not_read(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    for number in range(1000):
        assert load(core, tmp_path, f"n{number}", "a", register_only=True) == ""
    assert (len(answering(core)), disk.reads, set(tiers(core).values())) == (1000, [], {"disk"})
    for number in range(1000, MOST_NAMES):
        load(core, tmp_path, f"n{number}", "a", register_only=True)
    assert "no more may" in load(core, tmp_path, "one too many", "a")


def test_replacing_waits_for_the_new_one(disk: Disk, tmp_path: Path) -> None:
    """Requests that run, and those that come before the new weights are there, get the old ones."""
    core = core_of(disk, tmp_path)
    load(core, tmp_path, "x", "a")
    core.add(request("old", "x", tokens=30))
    core.step()
    assert "unload it first" in load(core, tmp_path, "x", "b")
    disk.open.clear()
    reply = start(core, tmp_path, "x", "b", replace=True)
    assert (reply.pending, reply.adapters[0].path[-1], reply.adapters[0].state) == (True, "a", "loaded")
    core.add(request("still old", "x"))
    digest = info(core, "x").digest
    used = core.scheduler.adapters.live
    assert used(1) == 2
    disk.open.set()
    ends: list[str] = []
    while info(core, "x").digest == digest:
        ends += [output.request_id for output in core.step() if output.finish_reason == "length"]
    core.add(request("new", "x"))
    assert (info(core, "x").path[-1], info(core, "x").requests, used(2)) == ("b", 1, 1)
    assert sorted([*ends, *finish(core)]) == ["new", "old", "still old"]
    assert core.adapters is not None
    assert not core.adapters.waiting  # the old weights are gone
    assert listed(core) == {"x": "loaded"}


def test_the_first_output_says_which_content_computes_it(disk: Disk, tmp_path: Path) -> None:
    """Whoever sent the request may have heard of the former one last."""
    core = core_of(disk, tmp_path)
    said: dict[str, list[str]] = {"old": [], "new": [], "base": []}
    load(core, tmp_path, "x", "a")
    core.add(request("old", "x", tokens=30))
    contents = [info(core, "x").digest]
    for output in core.step():
        said[output.request_id].append(output.adapter_digest)
    load(core, tmp_path, "x", "b", replace=True)
    contents.append(info(core, "x").digest)
    core.add(request("new", "x"))
    core.add(request("base", ""))
    while core.has_work:
        for output in core.step():
            said[output.request_id].append(output.adapter_digest)
    assert (said["old"][0], said["new"][0], said["base"][0]) == (*contents, "")
    assert not any(digest for digests in said.values() for digest in digests[1:])


def test_a_replacement_that_fails_leaves_the_old_one(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    load(core, tmp_path, "x", "a")
    assert "NaN" in load(core, tmp_path, "x", "broken", replace=True)
    one = info(core, "x")
    assert (one.state, one.path[-1], "NaN" in one.reason) == ("loaded", "a", True)
    core.add(request("1", "x"))
    assert finish(core) == {"1": "length"}
    assert load(core, tmp_path, "x", "b", replace=True) == ""
    assert (info(core, "x").path[-1], info(core, "x").reason) == ("b", "")


def test_a_path_with_the_same_content_moves_no_weights(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    (tmp_path / "adapters/a-copy").mkdir()
    load(core, tmp_path, "x", "a")
    core.add(request("1", "x"))
    finish(core)
    assert load(core, tmp_path, "x", "a-copy", replace=True, pinned=True) == ""
    one = info(core, "x")
    assert (one.path.endswith("a-copy"), one.tier, one.pinned) == (True, "device", True)
    assert load(core, tmp_path, "x", "a-copy", replace=True) == ""
    assert not info(core, "x").pinned


def test_the_last_of_several_replacements_counts(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    load(core, tmp_path, "x", "a")
    disk.open.clear()
    replies: dict[int, AdapterReply] = {}
    for number, folder in enumerate("bcc"):
        message = LoadAdapter(call_id=number, name="x", path=str(tmp_path / "adapters" / folder), replace=True)
        core.change_adapters(message, lambda reply: replies.update({reply.call_id: reply}))
    disk.open.set()
    finish(core)
    assert (info(core, "x").path[-1], replies[1].error, replies[2].error) == ("c", None, None)
    assert "meanwhile" in str(replies[0].error)
    start(core, tmp_path, "x", "d", replace=True)
    start(core, tmp_path, "x", "c", replace=True)  # as it is
    finish(core)
    assert info(core, "x").path[-1] == "c"


def test_unloading_what_is_being_loaded(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    load(core, tmp_path, "a")
    disk.open.clear()
    errors: list[str] = []
    for name, folder, options in (("b", "b", {}), ("a", "c", {"replace": True}), ("d", "d", {"register_only": True})):
        message = LoadAdapter(call_id=1, name=name, path=str(tmp_path / "adapters" / folder), **options)
        core.change_adapters(message, lambda reply: errors.append(str(reply.error)))
    core.step()
    for name in "abd":
        assert change(core, UnloadAdapter(call_id=1, name=name)).error is None
    assert len(errors) == 3
    assert all("meanwhile" in error for error in errors)
    disk.open.set()
    finish(core)
    assert (listed(core), core.adapters and core.adapters.waiting) == ({}, False)


def test_where_all_is_pinned_nobody_waits_for_ever(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path, host=2)
    assert core.adapters is not None
    for name in "ab":
        core.adapters.load_now(name, str(tmp_path / "adapters" / name))
    assert "raise --max_cpu_loras" in load(core, tmp_path, "c")
    with pytest.raises(RequestRefusedError, match="too many"):
        core.add(request("1", str(tmp_path / "adapters/c")))
    assert "raise --max_cpu_loras" in load(core, tmp_path, "a", "c", replace=True)
    assert load(core, tmp_path, "a") == ""


def test_a_pinned_replacement_that_is_being_read_counts(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    load(core, tmp_path, "x", "a")
    load(core, tmp_path, "y", "b", pinned=True)
    disk.open.clear()
    start(core, tmp_path, "x", "c", replace=True, pinned=True)
    start(core, tmp_path, "z", "d")
    assert "raise --max_cpu_loras" in load(core, tmp_path, "z", "e", pinned=True, replace=True)
    disk.open.set()
    core.add(request("1", str(tmp_path / "adapters/f")))
    assert finish(core) == {"1": "length"}


class Hub:
    """Downloads when it is let."""

    def __init__(self, root: Path) -> None:
        self.open = threading.Event()
        self._root = root

    def resolve(self, model: str) -> Path:
        assert self.open.wait(10)
        if "missing" in model:
            raise ModelFilesError(f"{model} does not exist on the hub")
        return self._root / "adapters" / model[-1]


def test_downloads_hold_up_nobody(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not requests, and not those whose adapters are on this machine."""
    hub = Hub(tmp_path)
    monkeypatch.setattr("blade_llm.engine.adapters.paths.resolve_model", hub.resolve)
    core = core_of(disk, tmp_path)
    for number in range(files.DOWNLOADS + 1):
        assert start(core, tmp_path, f"far{number}", "s3://bucket/a").pending
    assert start(core, tmp_path, "none", "hf://org/missing").pending
    assert load(core, tmp_path, "b") == ""
    core.add(request("near", "b"))
    core.add(request("cold", str(tmp_path / "adapters/c")))
    core.add(request("base", ""))
    ended: set[str] = set()
    for _ in range(500):
        ended |= {output.request_id for output in core.step() if output.finish_reason is not None}
    assert ended == {"near", "cold", "base"}
    assert info(core, "far0").state == "loading"
    hub.open.set()
    finish(core)
    assert {info(core, name).state for name in ("far0", "far1", "far2")} == {"loaded"}
    assert (info(core, "none").state, info(core, "none").reason) == (
        "failed",
        "hf://org/missing does not exist on the hub",
    )


def test_a_uri_of_a_folder(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    for folder, error in (("a", "None"), ("nowhere", "does not exist")):
        message = LoadAdapter(call_id=1, name=folder, path=f"file://{tmp_path}/adapters/{folder}")
        assert error in str(change(core, message).error)
    assert listed(core) == {"a": "loaded", "nowhere": "failed"}


def test_clients_download_nothing(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path)
    reply = start(core, tmp_path, "x", "hf://org/a", only_allowed_roots=True)
    assert reply.error is not None
    with pytest.raises(RequestRefusedError, match="--lora_allowed_roots"):
        core.add(request("1", "hf://org/a"))
    assert listed(core) == {}


def test_what_could_be_read_once_is_tried_again_for_the_next_request(disk: Disk, tmp_path: Path) -> None:
    core = core_of(disk, tmp_path, slots=1, host=1)
    load(core, tmp_path, "a")
    load(core, tmp_path, "b")
    read = disk.read
    disk.read = lambda folder: (_ for _ in ()).throw(AdapterError("the disk is gone"))  # type: ignore[method-assign]
    core.add(request("1", "a"))
    assert finish(core) == {"1": "the disk is gone"}
    assert (info(core, "a").state, answering(core)) == ("failed", ("b",))
    disk.read = read  # type: ignore[method-assign]
    core.add(request("2", "a"))
    assert finish(core) == {"2": "length"}
    assert info(core, "a").state == "loaded"
