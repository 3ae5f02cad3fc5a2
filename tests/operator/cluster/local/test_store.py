"""The object store: persistence, server-side apply, resource versions, and atomic writes."""

from __future__ import annotations

import copy
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_operator.cluster.local import files
from blade_operator.cluster.local.cluster import LocalCluster
from blade_operator.cluster.local.errors import Conflict, LocalError, NotFound
from blade_operator.cluster.local.events import Events
from blade_operator.cluster.local.garbage import collect
from blade_operator.cluster.local.merge import merge
from blade_operator.cluster.local.store import Store
from blade_operator.model.objects import Object, Ref
from blade_operator.model.plan import Prune

REF = Ref("Thing", "default", "a")


def _thing(name: str = "a", **body: Any) -> Object:
    return {"kind": "Thing", "metadata": {"name": name}, **body}


def test_what_is_stored_survives_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.create(_thing(spec={"x": 1}))
    store.write_status(REF, {"phase": "Ready"})
    before = store.get(REF)
    again = Store(tmp_path)
    assert again.get(REF) == before
    assert again.create(_thing("b"))["metadata"]["resourceVersion"] > before["metadata"]["resourceVersion"]  # type: ignore[index]


def test_resource_versions_never_come_again_even_after_a_removal(tmp_path: Path) -> None:
    store = Store(tmp_path)
    version = int(store.create(_thing())["metadata"]["resourceVersion"])
    store.remove(REF)
    assert int(Store(tmp_path).create(_thing())["metadata"]["resourceVersion"]) > version + 1


def test_generation_counts_changes_of_the_spec_only(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.apply(_thing(spec={"x": 1}), "me")
    store.write_status(REF, {"a": 1})
    store.update(REF, lambda obj: obj["metadata"].update(labels={"l": "1"}))
    assert store.get(REF)["metadata"]["generation"] == 1  # type: ignore[index]
    assert store.apply(_thing(spec={"x": 2}, metadata={"name": "a"}), "me")[1] == "configured"
    assert store.get(REF)["metadata"]["generation"] == 2  # type: ignore[index]
    assert store.get(REF)["status"] == {"a": 1}  # type: ignore[index]


def test_an_apply_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.apply(_thing(spec={"x": 1}), "me")[1] == "created"
    notified: list[Object] = []
    store.subscribe(notified.append)
    assert store.apply(_thing(spec={"x": 1}), "me")[1] == "unchanged"
    store.write_status(REF, {"a": 1})
    store.write_status(REF, {"a": 1})
    assert len(notified) == 1


def test_apply_takes_back_ones_own_fields_and_leaves_those_of_others(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.apply(_thing(spec={"mine": 1, "kept": {"a": 1, "b": 2}}), "me")
    store.update(REF, lambda obj: obj["spec"].update(theirs=7))
    store.apply(_thing(spec={"kept": {"a": 1}}), "me")
    assert store.get(REF)["spec"] == {"kept": {"a": 1}, "theirs": 7}  # type: ignore[index]


def test_lists_with_names_are_merged_by_them() -> None:
    live = {"env": [{"name": "A", "value": "1"}, {"name": "OTHER", "value": "x"}], "args": ["a", "b"]}
    before = {"env": [{"name": "A", "value": "1"}], "args": ["a", "b"]}
    now = {"env": [{"name": "B", "value": "2"}], "args": ["c"]}
    assert merge(live, before, now) == {
        "env": [{"name": "B", "value": "2"}, {"name": "OTHER", "value": "x"}],
        "args": ["c"],
    }


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)
_SPEC = st.dictionaries(st.sampled_from("abcd"), _JSON, max_size=4)


@settings(deadline=None, max_examples=50)
@given(first=_SPEC, second=_SPEC)
def test_the_last_apply_of_a_field_manager_is_what_is_stored(first: Object, second: Object) -> None:
    assert merge(copy.deepcopy(first), first, second) == second
    assert merge(copy.deepcopy(first), first, first) == first


@settings(deadline=None, max_examples=15)
@given(specs=st.lists(st.tuples(st.sampled_from("xyz"), _SPEC | st.none()), max_size=8))
def test_the_files_are_always_the_store(tmp_path_factory: pytest.TempPathFactory, specs: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = Store(folder)
    for name, spec in specs:
        if spec is None:
            store.delete(Ref("Thing", "default", name))
        else:
            store.apply(_thing(name, spec=spec), "me")
        assert Store(folder).everything() == sorted(store.everything(), key=lambda obj: str(obj["metadata"]["name"]))


def test_a_writer_that_dies_halfway_leaves_the_old_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.create(_thing(spec={"x": 1}))

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        store.update(REF, lambda obj: obj["spec"].update(x=2))
    monkeypatch.undo()
    assert store.get(REF)["spec"] == {"x": 1}  # type: ignore[index]
    (tmp_path / "Thing" / "default" / ".tmp-1-a.json").write_text('{"half')
    assert [obj["spec"] for obj in Store(tmp_path).everything()] == [{"x": 1}]
    assert [path.name for path in (tmp_path / "Thing" / "default").iterdir()] == ["a.json"]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    Store(tmp_path).create(_thing())
    (tmp_path / "Thing" / "default" / "a.json").write_text("{")
    with pytest.raises(LocalError, match=r"a\.json is damaged"):
        Store(tmp_path)


def test_what_it_returns_is_a_copy(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.create(_thing(spec={"x": 1}))
    store.get(REF)["spec"]["x"] = 2  # type: ignore[index]
    store.find("Thing")[0]["spec"]["x"] = 2
    assert store.get(REF)["spec"] == {"x": 1}  # type: ignore[index]


@pytest.mark.parametrize("name", ["Upper", "../up", "", "-a", "a/b"])
def test_a_name_that_cannot_be_one_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Conflict, match=r"metadata\.name"):
        Store(tmp_path).create(_thing(name))


def test_creating_twice_and_updating_nothing_are_errors(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.create(_thing())
    with pytest.raises(Conflict, match="exists already"):
        store.create(_thing())
    with pytest.raises(NotFound, match='thing "b" not found'):
        store.update(Ref("Thing", "default", "b"), lambda obj: None)


def test_deleting_a_pod_marks_it_and_its_grace_can_only_shrink(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    store = Store(tmp_path, lambda: moment)
    ref = Ref("Pod", "default", "p")
    store.create({"kind": "Pod", "metadata": {"name": "p"}, "spec": {"terminationGracePeriodSeconds": 40}})
    store.delete(ref)
    marked = store.get(ref)
    assert marked is not None
    assert marked["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:40Z"
    moment += timedelta(seconds=5)
    store.delete(ref)
    assert store.get(ref) == marked
    store.delete(ref, grace=0)
    assert store.get(ref)["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:05Z"  # type: ignore[index]
    store.remove(ref)
    assert store.get(ref) is None


def test_garbage_collection_waits_until_all_owners_are_gone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second = (store.create(_thing(name))["metadata"]["uid"] for name in ("a", "b"))
    child = _thing("child")
    child["metadata"]["ownerReferences"] = [{"uid": first}, {"uid": second}]
    store.create(child)
    store.remove(REF)
    collect(store)
    assert store.get(Ref("Thing", "default", "child")) is not None
    store.remove(Ref("Thing", "default", "b"))
    collect(store)
    assert store.get(Ref("Thing", "default", "child")) is None


def test_files_are_replaced_whole_and_leave_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.json"
    files.write_json(path, {"a": 1})
    files.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert os.listdir(path.parent) == ["a.json"]


async def test_items_that_others_added_are_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    cluster = LocalCluster(store, Events(store))
    metadata = {"name": "r", "namespace": "default"}
    rules = [{"verbs": ["get", "list"]}, {"verbs": ["watch"]}]
    role = store.create(
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules}
    )
    await cluster.prune(Prune(Ref.of(role), ("/rules/1", "/rules/0/verbs/0")))
    found = store.get(Ref.of(role))
    assert found is not None
    assert found["rules"] == [{"verbs": ["list"]}]
    await cluster.prune(Prune(Ref("Role", "default", "gone"), ("/rules/1",)))
