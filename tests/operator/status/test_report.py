"""The report of a service for its routers' web UI: what it says, and what it must not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from blade_operator.model.objects import Object
from blade_operator.redact_text import redact_text
from blade_operator.spec.crd.definition import custom_resource_definition
from blade_operator.status.report import HIDDEN, MAX_EVENTS, encode, service_report, without_secrets
from blade_protocol.labels import REVISION, ROLE

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def service(**spec: Any) -> Object:
    return {
        "apiVersion": "serving.bladellm.io/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": "qwen", "namespace": "default", "generation": 2, "uid": "u", "annotations": {"a": "b"}},
        "spec": spec,
        "status": {"phase": "old"},
    }


def pod(name: str, role: str = "engine", ready: bool = True, **status: Any) -> Object:
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return {
        "metadata": {"name": name, "namespace": "default", "labels": {ROLE: role, REVISION: "r1"}},
        "spec": {"nodeName": "node-1", "containers": [{"name": role, "image": "i"}]},
        "status": {"phase": "Running", "conditions": [condition], **status},
    }


def event(number: int) -> Object:
    return {"time": float(number), "type": "Normal", "reason": "R", "message": "m" * 1000, "object": "o", "count": 1}


def report(*pods: Object, events: int = 0, status: Object | None = None, **spec: Any) -> Object:
    found = {"phase": "Ready"} if status is None else status
    return service_report(service(**spec), found, pods, [event(number) for number in range(events)], NOW)


def test_it_has_the_object_with_the_new_status_its_pods_and_events() -> None:
    found = report(pod("qwen-1"), pod("qwen-router-1", "router"), pod("fetch", "job"), events=2)
    assert found["reported"] == NOW.timestamp()
    assert found["object"]["status"] == {"phase": "Ready"}
    assert found["object"]["metadata"] == {"name": "qwen", "namespace": "default", "generation": 2}
    assert [each["name"] for each in found["pods"]] == ["qwen-1", "qwen-router-1"]
    assert found["pods"][0] == {
        "name": "qwen-1",
        "role": "engine",
        "phase": "Running",
        "ready": True,
        "revision": "r1",
        "node": "node-1",
        "restarts": 0,
        "message": None,
    }
    assert [each["time"] for each in found["events"]] == [0.0, 1.0]


def test_a_pod_that_fails_says_why_with_its_last_line() -> None:
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "line 1\nValueError: no such model"}}
    states = [
        {"name": "engine", "ready": False, "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    ]
    states[0]["lastState"] = ended
    (found,) = report(pod("qwen-1", ready=False, containerStatuses=states))["pods"]
    assert (found["ready"], found["restarts"]) == (False, 4)
    assert "ValueError: no such model" in found["message"]


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": {"env": [{"name": "HF_TOKEN", "value": "s3cret"}]}},
        {
            "engine": {
                "podTemplate": {"spec": {"containers": [{"name": "x", "env": [{"name": "A", "value": "s3cret"}]}]}}
            }
        },
        {"engine": {"podTemplate": {"spec": {"initContainers": [{"env": [{"name": "A", "value": "s3cret"}]}]}}}},
        {"engine": {"extraArgs": ["--api_key", "s3cret", "--port", "1"]}},
        {"engine": {"extraArgs": ["--hf-token=s3cret"]}},
        {"model": {"uri": "https://user:s3cret@host/model"}},
        {"model": {"uri": "https://bucket.s3.amazonaws.com/model?X-Amz-Signature=s3cret"}},
        {"router": {"podTemplate": {"metadata": {"annotations": {"vault/token": "s3cret"}}}}},
    ],
)
def test_what_may_be_secret_is_not_in_it(spec: dict[str, Any]) -> None:
    text = json.dumps(report(**spec), ensure_ascii=False)
    assert "s3cret" not in text
    assert HIDDEN in text


def test_the_rest_of_the_spec_stays_as_it_is() -> None:
    spec = {
        "model": {"uri": "hf://Qwen/Qwen3-8B", "tokenSecretRef": {"name": "hf"}},
        "engine": {
            "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
            "extraArgs": ["--max_tokens", "7", "--block_size=32"],
        },
        "router": {"tls": {"secretName": "cert"}, "auth": {"keysSecret": {"name": "keys"}}},
    }
    assert without_secrets(spec) == spec


def strings(schema: Object) -> Iterator[str]:
    """Names of the fields that are strings."""
    for name, each in schema.get("properties", {}).items():
        if each.get("type") == "string":
            yield name
        yield from strings(each)
    if "items" in schema:
        yield from strings(schema["items"])


def test_no_field_is_hidden_for_its_name() -> None:
    """``perMillionTokens`` is no token: a spec and a status name Secrets, and have none."""
    (version,) = custom_resource_definition()["spec"]["versions"]
    names = set(strings(version["schema"]["openAPIV3Schema"]))
    assert "perMillionTokens" in names
    assert [name for name in sorted(names) if without_secrets({name: "x"}) != {name: "x"}] == []


@pytest.mark.parametrize(
    "text",
    [
        "serve --api_key s3cr3tvalue --port 8000",
        "request failed: Authorization: Bearer s3cr3tvalue",
        'config: {"password": "s3cr3tvalue"}',
    ],
)
def test_texts_have_no_values_of_what_is_named_like_a_secret(text: str) -> None:
    found = without_secrets({"args": ["sh", "-c", text], "message": text})
    assert "s3cr3tvalue" not in str(found)
    assert found["args"][:2] == ["sh", "-c"]
    assert text.partition(" ")[0] in found["message"]


def test_messages_have_no_signed_urls() -> None:
    status = {"failures": [{"message": "GET https://b.s3.aws/x?sig=s3cret: 403"}]}
    assert "s3cret" not in json.dumps(report(status=status))
    assert "https://b.s3.aws/x?" in json.dumps(report(status=status))


@pytest.mark.parametrize(
    "token",
    [
        "hf_abcdefghijklmnopqrstuvwxyz0123456789",
        "sk-proj-aB3dEfGh1jKlMn0pQrSt",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
    ],
)
def test_messages_have_no_tokens(token: str) -> None:
    """The last line of a container is whatever a program printed, and the page is for all who may ask the service."""
    text = f"401 for the model with token {token}"
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": text}}
    states: list[Object] = [
        {
            "name": "engine",
            "ready": False,
            "restartCount": 4,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": ended,
        }
    ]
    found = report(pod("a", ready=False, containerStatuses=states), status={"failures": [{"lastLog": text}]})
    assert token not in json.dumps(found)
    assert found["object"]["status"]["failures"][0]["lastLog"] == f"401 for the model with token {HIDDEN}"


@pytest.mark.parametrize("name", ["hf-llama-engine-3bb83307-7tf85", "sk-llama-router-9b196a3c-md6ll"])
def test_no_name_is_taken_for_a_token(name: str) -> None:
    assert without_secrets(f"pod {name}: engine") == f"pod {name}: engine"
    assert redact_text(f"pod {name}: engine") == f"pod {name}: engine"


def test_only_the_newest_events_are_in_it() -> None:
    assert report(events=MAX_EVENTS + 5)["events"][0]["time"] == 5.0


def test_what_does_not_fit_is_left_out_and_first_the_oldest_events() -> None:
    found = report(*(pod(f"qwen-{number}", ready=number % 2 == 0) for number in range(20)), events=40)
    whole = encode(found)
    assert msgspec.json.decode(whole) == found
    shorter = msgspec.json.decode(encode(found, 20_000))
    assert shorter["events"] == found["events"][-len(shorter["events"]) :]
    assert len(shorter["pods"]) == 20
    few = encode(found, 2_000)
    assert len(few) <= 2_000
    left = msgspec.json.decode(few)
    assert not left["events"]
    assert not any(each["ready"] for each in left["pods"])


def test_a_status_that_is_too_long_keeps_the_conditions() -> None:
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Ready", "conditions": conditions, "preflight": ["x" * 1000] * 100}
    left = msgspec.json.decode(encode(report(status=status, model={"uri": "u" * 1000}), 1_000))
    assert left["object"]["status"] == {"phase": "Ready", "conditions": conditions}
    assert left["object"]["spec"] == {}
