"""The CRD on the real API server: it judges specs as the operator does, and says why in words people understand."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from operator_support.change_examples import CHANGES
from operator_support.random_specs import SERVICES
from operator_support.rule_example import Example
from operator_support.rule_examples import EXAMPLES

from blade_operator.model.objects import Object
from blade_operator.spec import SpecError, apply_defaults, parse_service
from blade_operator.spec.crd.definition import custom_resource_definition
from blade_operator.spec.rules.change import CHANGE_RULES
from blade_operator.spec.rules.rule import Rule
from blade_operator.spec.rules.service import RULES
from blade_protocol.labels import API_VERSION, KIND
from e2e.cluster import Cluster
from e2e.support.dry_run import DryRun, dry_run

NAMESPACE = "default"
"""Nothing is ever created: every request is a dry run."""


@pytest.fixture(scope="module")
def server(cluster: Cluster, crd: None) -> Iterator[DryRun]:
    with dry_run(cluster, NAMESPACE) as requests:
        yield requests


def test_the_crd_is_established_without_a_complaint(cluster: Cluster, crd: None) -> None:
    found = cluster.json("get", "crd", custom_resource_definition()["metadata"]["name"])
    conditions = {each["type"]: (each["status"], each["reason"]) for each in found["status"]["conditions"]}
    assert conditions["Established"][0] == "True"
    assert "NonStructuralSchema" not in conditions


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.field)
def test_kubectl_prints_the_rule_that_is_broken(cluster: Cluster, crd: None, rule: Rule) -> None:
    example = next(example for example in EXAMPLES if example.is_of(rule))
    printed = _kubectl_create(cluster, _service(example))
    assert printed.startswith(f'The LLMService "{example.name}" is invalid: ')
    assert f"{rule.field}: Invalid value: {rule.message}" in printed


def test_every_example_of_a_rule_is_judged_as_the_operator_does(server: DryRun) -> None:
    for example in EXAMPLES:
        response = server.create(_service(example))
        assert response.accepted is (not example.breaks), (example, response.message)


def _service(example: Example) -> Object:
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": example.name}, "spec": example.spec}


def _kubectl_create(cluster: Cluster, service: Object) -> str:
    """What kubectl prints, on whichever stream."""
    arguments = ["kubectl", "create", "--dry-run=server", "-n", NAMESPACE, "-f", "-"]
    done = cluster.run(arguments, input=json.dumps(service))
    return (done.stdout + done.stderr).strip()


def test_every_change_is_judged_as_the_operator_does(cluster: Cluster, crd: None, namespace: str) -> None:
    """Of what is stored: there are no engines, and a claim that no volume can be bound to does no harm."""
    messages = {rule.field: rule.message for rule in CHANGE_RULES}
    for number, change in enumerate(CHANGES):
        name = f"change-{number}"
        cluster.apply(change.service(change.before, name), namespace=namespace)
        after = json.dumps(change.service(change.after, name))
        for _ in range(5):  # an operator may write the status between kubectl's reading and writing
            done = cluster.run(["kubectl", "replace", "--dry-run=server", "-n", namespace, "-f", "-"], input=after)
            printed = done.stdout + done.stderr
            if "the object has been modified" not in printed:
                break
        assert (done.returncode == 0) is (not change.breaks), (change, printed)
        if change.breaks:
            assert f"{change.breaks}: Invalid value: {messages[change.breaks]}" in printed


def test_server_and_operator_agree_on_five_hundred_random_specs(server: DryRun) -> None:
    verdicts = {True: 0, False: 0}

    @settings(
        max_examples=500,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(SERVICES)
    def compare(service: Object) -> None:
        answer = server.create(service)
        verdicts[answer.accepted] += 1
        if not answer.accepted:
            with pytest.raises(SpecError):
                parse_service(service)
            return
        # Also the defaults: what the server fills in is what we fill in.
        assert parse_service(answer.object).spec == parse_service(apply_defaults(service)).spec

    compare()
    assert min(verdicts.values()) >= 50, verdicts


def test_a_field_from_a_newer_version_is_named(cluster: Cluster, crd: None) -> None:
    service = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "newer"},
        "spec": {"model": {"uri": "file:///m"}, "engine": {"ofTheFuture": {"steps": 4}}},
    }
    assert 'unknown field "spec.engine.ofTheFuture"' in _kubectl_create(cluster, service)


def test_explain_documents_every_field(cluster: Cluster, crd: None) -> None:
    text = cluster.kubectl("explain", "llmservices.spec", "--recursive")
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for name in _names(schema):
        assert f"{name}\t<" in text, name
    assert "Devices of one engine" in cluster.kubectl("explain", "llm.spec.engine.gpus.count")


def _names(schema: Object) -> Iterator[str]:
    for name, child in schema.get("properties", {}).items():
        yield name
        yield from _names(child.get("items", child))
