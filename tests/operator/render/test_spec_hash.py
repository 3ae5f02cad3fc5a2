"""The hash of a spec is the same in every release: an upgrade of the operator restarts no engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from operator_support.mini_cluster import MiniCluster, service
from pydantic import BaseModel

from blade_operator.render import Defaults, spec_hash
from blade_operator.render.spec_hash import BORN_WITH
from blade_operator.spec import fields, parse_service
from blade_operator.spec.crd.schema import service_schema
from blade_operator.spec.explain import model_of

STORED: dict[str, Any] = json.loads(Path(__file__).with_name("stored_specs.json").read_text())
"""Specs as API servers stored them with the CRDs of earlier releases, and their hashes then. Never written anew: where
one of these does not match any more, an upgrade would replace every engine."""


@pytest.mark.parametrize("name", STORED)
def test_a_spec_that_an_earlier_release_stored_has_the_hash_of_then(name: str) -> None:
    stored = service()
    stored["spec"] = STORED[name]["spec"]
    assert spec_hash(parse_service(stored)) == STORED[name]["hash"]
    # As a server returns it that has filled in the fields of this release.
    assert spec_hash(parse_service(service(STORED[name]["spec"]))) == STORED[name]["hash"]


@contextmanager
def other_defaults() -> Iterator[None]:
    """A release in which engines compute in bfloat16 unless told otherwise, and the check has fewer items."""
    with pytest.MonkeyPatch.context() as patch:
        for model, name, default in ((fields.Engine, "dtype", "bfloat16"), (fields.Check, "items", ("shm",))):
            patch.setattr(model.model_fields[name], "default", default)
        _rebuild()
        yield
    _rebuild()


def _rebuild() -> None:
    for model in (fields.Engine, fields.Check, fields.LLMServiceSpec):
        model.model_rebuild(force=True)


def test_a_default_that_a_release_changes_restarts_no_engine() -> None:
    cluster = MiniCluster(service({"engine": {"maxNumSeqs": 8}}))
    cluster.converge()
    before = spec_hash(parse_service(cluster.service))
    with other_defaults():
        assert parse_service({**service(), "spec": {"model": {"uri": "file:///m"}}}).spec.engine.dtype == "bfloat16"
        assert spec_hash(parse_service(cluster.service)) == before
        cluster.defaults = Defaults(engine_image="engine:2", router_image="operator:1")
        assert cluster.plan().apply == []
    assert fields.Engine().dtype == "auto"


def test_each_field_that_shapes_engines_has_the_default_it_was_born_with() -> None:
    """A new field is added to the table; an entry that is there stays, whatever its default becomes."""
    assert _models(fields.LLMServiceSpec, ("model", "engine", "check", "tracing", "log_format")) == {
        name: {*entries} for name, entries in BORN_WITH.items()
    }


def _models(model: type[BaseModel], only: tuple[str, ...] = ()) -> dict[str, set[str]]:
    """The optional fields of ``model`` and of the models in them, by model."""
    found: dict[str, set[str]] = {}
    for name, info in model.model_fields.items():
        if only and name not in only:
            continue
        if not info.is_required():
            found.setdefault(model.__name__, set()).add(info.alias or name)
        if inner := model_of(info.annotation):
            found |= _models(inner)
    return found


def test_the_schema_still_has_the_fields_that_were_stored() -> None:
    known = service_schema()["properties"]["spec"]["properties"]
    for name, case in STORED.items():
        for part in ("model", "engine", "check"):
            assert {*case["spec"].get(part, {})} <= {*known[part]["properties"]}, name
