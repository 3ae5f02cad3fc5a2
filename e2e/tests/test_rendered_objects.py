"""Every rendered object on the real API server: valid to the last field, restricted, and stored as it was meant."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator

import pytest
from operator_support import golden
from operator_support.rendering import CASES, FOREIGN

from blade_operator.model.objects import Object
from blade_operator.reconcile.drift import contains
from e2e.cluster import Cluster


def _objects(case: str, namespace: str) -> Iterator[Object]:
    for obj in golden.objects(case):
        obj["metadata"]["namespace"] = namespace
        yield obj


@pytest.mark.parametrize("case", sorted({*CASES} - FOREIGN))
def test_the_server_accepts_every_object_and_stores_every_field(cluster: Cluster, namespace: str, case: str) -> None:
    objects = list(_objects(case, namespace))
    for obj, stored in zip(objects, _dry_run(cluster, ["apply", "--server-side"], objects), strict=True):
        where = f"{obj['kind']} {obj['metadata']['name']}"
        assert contains(stored, obj), f"{where} would be written again and again"
    _dry_run(cluster, ["create"], [_pod(obj) for obj in objects if obj["kind"] == "Deployment"])


def _dry_run(cluster: Cluster, verb: list[str], objects: list[Object]) -> list[Object]:
    arguments = ["kubectl", *verb, "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-"]
    done = cluster.run(arguments, input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    assert (done.returncode, done.stderr) == (0, "")  # no warning either: those of Pod Security are among them
    return list(_documents(done.stdout))


def _documents(text: str) -> Iterator[Object]:
    """kubectl prints a List, or one object after another: what each is made of."""
    decoder, position = json.JSONDecoder(), 0
    while position < len(text.rstrip()):
        document, position = decoder.raw_decode(text, position)
        position += len(text[position:]) - len(text[position:].lstrip())
        yield from document["items"] if document["kind"] == "List" else [document]


def _pod(deployment: Object) -> Object:
    """One pod of it, as far as this namespace has what it refers to: it must be admitted under ``restricted``."""
    template = copy.deepcopy(deployment["spec"]["template"])
    template["spec"]["serviceAccountName"] = "default"
    template["spec"].pop("priorityClassName", None)
    metadata = {
        **template["metadata"],
        "name": deployment["metadata"]["name"],
        "namespace": deployment["metadata"]["namespace"],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
