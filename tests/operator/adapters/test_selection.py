"""Which LoRAAdapters become adapters of a service, and why others do not."""

from __future__ import annotations

from typing import Any

import pytest

from blade_operator.adapters.selection import Selection, select
from blade_operator.spec import SpecError, parse_adapter, parse_service
from blade_operator.spec.adapters.fields import MOST_ADAPTERS
from blade_protocol.labels import ADAPTER_KIND, API_VERSION, KIND


def adapter(name: str, labels: dict[str, str] | None = None, age: int = 0, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels or {}, "creationTimestamp": f"2026-01-01T00:{age:02}:00Z"}
    spec = {"uri": f"file:///{name}", **spec}
    return {"apiVersion": API_VERSION, "kind": ADAPTER_KIND, "metadata": metadata, "spec": spec}


def chosen(*objects: dict[str, Any], selector: dict[str, Any] | None = None, **spec: Any) -> Selection:
    selector = {} if selector is None else selector
    spec = {"model": {"uri": "file:///m"}, "engine": {"lora": {}}, "adapterSelector": selector, **spec}
    service = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "qwen"}, "spec": spec}
    return select(parse_service(service), objects)


def names(selection: Selection) -> list[str]:
    return [each.name for each in selection.service.spec.adapters]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, ["law", "sql", "bare"]),
        ({"matchLabels": {"team": "data"}}, ["sql"]),
        ({"matchLabels": {"team": "data", "stage": "beta"}}, []),
        ({"matchExpressions": [{"key": "team", "operator": "In", "values": ["data", "legal"]}]}, ["law", "sql"]),
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["data"]}]}, ["law", "bare"]),
        ({"matchExpressions": [{"key": "team", "operator": "Exists"}]}, ["law", "sql"]),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, ["bare"]),
        ({"matchLabels": {"team": "data"}, "matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, []),
    ],
)
def test_labels_select(selector: dict[str, Any], expected: list[str]) -> None:
    objects = [
        adapter("law", {"team": "legal"}),
        adapter("sql", {"team": "data", "stage": "alpha"}, age=1),
        adapter("bare", age=2),
    ]
    selection = chosen(*objects, selector=selector)
    assert names(selection) == expected
    assert selection.taken == {*expected}
    assert selection.left_out == {}


def test_without_a_selector_none_is_taken() -> None:
    service = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "qwen"},
        "spec": {"model": {"uri": "file:///m"}, "engine": {"lora": {}}},
    }
    assert names(select(parse_service(service), [adapter("law")])) == []


def test_they_come_after_those_of_the_spec_with_all_their_fields() -> None:
    one = adapter("law", replicas=2, preload=False, pinned=True, model="lawyer", weight=7)
    selection = chosen(one, adapters=[{"name": "sql", "uri": "file:///sql"}])
    assert names(selection) == ["sql", "law"]
    taken = selection.service.spec.adapters[1]
    assert (taken.replicas, taken.preload, taken.pinned, taken.requested_as, taken.weight) == (
        2,
        False,
        True,
        "lawyer",
        7,
    )


def test_what_would_harm_the_service_is_left_out_alone() -> None:
    selection = chosen(
        adapter("good"),
        adapter("sql"),
        adapter("x"),
        adapter("hub", uri="hf://a/b"),
        adapter("nowhere", weight=0),
        adapter("broken", uri="ftp://x"),
        adapter("odd", replicas="two"),
        adapters=[{"name": "sql", "uri": "file:///sql"}],
        model={"uri": "file:///m", "servedNames": ["x"]},
    )
    assert names(selection) == ["sql", "good"]
    assert set(selection.left_out) == {"sql", "x", "hub", "nowhere", "broken", "odd"}
    assert selection.left_out["sql"] == "spec.adapters of qwen has one of this name"
    assert selection.left_out["x"] == "its name is one of the model's in qwen"
    assert "each uri must be a file:// one" in selection.left_out["hub"]
    assert "needs a weight above 0" in selection.left_out["nowhere"]
    assert selection.left_out["broken"].startswith("spec.uri: must be as spec.model.uri")
    assert selection.left_out["odd"] == 'spec.replicas: must be an integer, not the string "two"'


def test_one_that_needs_another_is_taken_with_it() -> None:
    old, new = adapter("sql-v1", model="sql", weight=0), adapter("sql-v2", age=1, model="sql")
    assert names(chosen(old, new)) == ["sql-v2", "sql-v1"]
    assert chosen(old).left_out.keys() == {"sql-v1"}


def test_of_those_that_exclude_each_other_the_oldest_stays() -> None:
    young, old = adapter("b", age=1, model="a"), adapter("a", age=0, model="c")
    selection = chosen(young, old)
    assert names(selection) == ["a"]
    assert "gives its own name away" in selection.left_out["b"]


def test_no_more_than_a_service_can_have() -> None:
    selection = chosen(*(adapter(f"a{number:03}") for number in range(MOST_ADAPTERS + 2)))
    assert len(names(selection)) == MOST_ADAPTERS
    assert selection.left_out == dict.fromkeys(
        (f"a{MOST_ADAPTERS}", f"a{MOST_ADAPTERS + 1}"), f"qwen has {MOST_ADAPTERS} adapters, and can have no more"
    )


def test_one_that_is_being_deleted_is_gone() -> None:
    leaving = adapter("law")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert names(chosen(leaving)) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kind": "LLMService"}, "apiVersion: must be serving.bladellm.io/v1alpha1, and kind LoRAAdapter"),
        ({"spec": None}, "spec.uri: is required"),
        ({"spec": {"uri": "file:///a", "pinnned": True}}, "spec.pinnned: unknown field; did you mean pinned?"),
        ({"spec": {"uri": "file:///a", "name": "b"}}, "spec.name: unknown field"),
        ({"spec": {"uri": "file:///a", "weight": 2000}}, "spec.weight: must be at most 1000, not 2000"),
    ],
)
def test_a_wrong_object_names_the_field(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_adapter({**adapter("law"), **change})
    assert str(caught.value).startswith(problem)
