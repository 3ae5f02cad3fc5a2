"""What ``kubectl apply`` says to an LLMService that cannot be, and what becomes of one from a newer version.

The rules between fields are in test_spec_on_server.py, what only the running pods show in test_troubleshooting.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest

from e2e.cluster.base import Cluster
from e2e.support.service import Object, Service, manifest

Change = Callable[[Object], Any]
LONG: Final = "x" * 10_000


@dataclass(frozen=True)
class Bad:
    """One mistake in the demo's manifest, and what kubectl prints for it."""

    name: str
    change: Change
    says: tuple[str, ...]


def overlay_label(service: Object) -> None:
    service["spec"]["engine"]["podTemplate"] = {"metadata": {"labels": {"team": LONG}}}


MISTAKES: Final = (
    Bad(
        "no name",
        lambda service: service["metadata"].update(name=""),
        ("resource name may not be empty",),
    ),
    Bad(
        "name of 300 characters",
        lambda service: service["metadata"].update(name="n" * 300),
        ("must be no more than 253",),
    ),
    Bad(
        "name for which labels have no room",
        lambda service: service["metadata"].update(name="n" * 41),
        ("metadata.name: Invalid value: must be at most 40 lower case letters, digits and '-'",),
    ),
    Bad(
        "name with capitals",
        lambda service: service["metadata"].update(name="Demo"),
        ('metadata.name: Invalid value: "Demo": a lowercase RFC 1123 subdomain',),
    ),
    Bad(
        "label of 10 kB",
        lambda service: service["metadata"].update(labels={"team": LONG}),
        ("metadata.labels: Invalid value:", "must be no more than 63"),
    ),
    Bad(
        "label of 10 kB for the pods",
        overlay_label,
        ("spec.engine.podTemplate.metadata.labels.team: Too long: may not be more than 63",),
    ),
    Bad(
        "field that does not exist",
        lambda service: service["spec"]["engine"].update(contextLenght=4096),
        ('strict decoding error: unknown field "spec.engine.contextLenght"',),
    ),
    Bad(
        "version that does not exist",
        lambda service: service.update(apiVersion="serving.bladellm.io/v1beta1"),
        ('no matches for kind "LLMService" in version "serving.bladellm.io/v1beta1"',),
    ),
    Bad(
        "no spec",
        lambda service: service.pop("spec"),
        ("spec: Required value",),
    ),
    Bad(
        "no model",
        lambda service: service["spec"].pop("model"),
        ("spec.model: Required value",),
    ),
    Bad(
        "word for a number",
        lambda service: service["spec"].update(replicas="two"),
        ('spec.replicas: Invalid value: "string": spec.replicas in body must be of type integer: "string"',),
    ),
    Bad(
        "word that is none of the choices",
        lambda service: service["spec"]["check"].update(mode="Enforced"),
        ('spec.check.mode: Unsupported value: "Enforced": supported values: "Enforce", "Warn", "Off"',),
    ),
    Bad(
        "bare Off, which YAML takes for false",
        lambda service: service["spec"]["check"].update(mode=False),
        ('spec.check.mode in body must be of type string: "boolean"',),
    ),
    Bad(
        "annotation of 2 MB",
        lambda service: service["metadata"].update(annotations={"note": LONG * 200}),
        ("Request entity too large: limit is",),
    ),
)  # fmt: skip


@pytest.mark.parametrize("bad", MISTAKES, ids=lambda bad: bad.name)
def test_kubectl_names_the_mistake_and_nothing_is_stored(cluster: Cluster, crd: None, bad: Bad) -> None:
    service = manifest("demo")
    bad.change(service)
    printed = server_says(cluster, service)
    for words in bad.says:
        assert words in printed
    assert cluster.kubectl("-n", "default", "get", "llm", "-o", "name") == ""


def server_says(cluster: Cluster, service: Object) -> str:
    """What kubectl prints on being refused this service."""
    done = cluster.run(["kubectl", "-n", "default", "apply", "-f", "-"], input=json.dumps(service))
    assert done.returncode == 1, done.stdout
    return done.stderr


@pytest.mark.parametrize("replicas", [-1, 1001])
def test_kubectl_scale_keeps_to_the_bounds(cluster: Cluster, crd: None, namespace: str, replicas: int) -> None:
    cluster.apply(manifest("demo", replicas=0), namespace=namespace)
    printed = cluster.kubectl("-n", namespace, "scale", "llm", "demo", f"--replicas={replicas}", check=False)
    assert "replicas" in printed
    assert "must be greater than or equal to 0" in printed or "should be less than or equal to 1000" in printed
    assert cluster.json("-n", namespace, "get", "llm", "demo")["spec"]["replicas"] == 0


def test_a_service_from_a_newer_version_runs_without_what_is_unknown(private: Service) -> None:
    newer = manifest("demo", ofTheFuture={"metric": "queueLength"})
    newer["spec"]["engine"]["ofTheFuture"] = {"steps": 4}
    document = json.dumps(newer)
    refused = private.kubectl("apply", "-f", "-", input=document, check=False)
    for field in ("spec.ofTheFuture", "spec.engine.ofTheFuture"):
        assert f'unknown field "{field}"' in refused
    warned = private.kubectl("apply", "--validate=warn", "-f", "-", input=document, check=False)
    assert 'Warning: unknown field "spec.ofTheFuture"' in warned
    private.kubectl("apply", "--validate=ignore", "-f", "-", input=document)
    spec = private.get()["spec"]
    assert "ofTheFuture" not in spec
    assert "ofTheFuture" not in spec["engine"]
    private.wait_until_converged(1)
