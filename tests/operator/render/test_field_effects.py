"""What a change of each field of the spec restarts, compared with the table in docs/rollouts.md."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from operator_support.mini_cluster import service
from pydantic import BaseModel

from blade_operator.model.objects import Object
from blade_operator.render import Defaults, pod_template, restorable, revision_of, router_objects, spec_hash
from blade_operator.render.revisions import RESTORED, RESTORED_FIELDS
from blade_operator.spec import parse_service
from blade_operator.spec.fields import LLMServiceSpec

DOCS = Path(__file__).parents[3] / "docs" / "rollouts.md"
HUB: dict[str, Any] = {"model": {"uri": "hf://Qwen/Qwen2.5-0.5B", "cache": {"claimName": "models"}}}
LORA: dict[str, Any] = {"engine": {"lora": {}}}
GPU: dict[str, Any] = {"engine": {"gpus": {"count": 1}}}
RESOURCES = {"limits": {"cpu": 2, "memory": "9Gi"}}
LABELLED = {"metadata": {"labels": {"team": "search"}}}
SAMPLES: dict[str, tuple[dict[str, Any], Any]] = {
    "model.uri": ({}, "file:///models/other"),
    "model.revision": (HUB, "v2"),
    "model.servedNames": ({"model": {"uri": "file:///models/qwen"}}, ["other"]),
    "model.cache": (HUB, {"claimName": "others"}),
    "model.tokenSecretRef": (HUB, {"name": "hf"}),
    "model.credentialsSecretRef": ({"model": {"uri": "s3://bucket/qwen"}}, {"name": "s3"}),
    "model.quantization": ({"model": {"uri": "file:///models/qwen"}}, {"kvCache": "int8"}),
    "engine.image": ({}, "engine:7"),
    "engine.preset": ({}, "throughput"),
    "engine.dtype": ({}, "bfloat16"),
    "engine.contextLength": ({}, 4096),
    "engine.maxNumSeqs": ({}, 8),
    "engine.maxWaitingRequests": ({}, 8),
    "engine.kvCacheBytes": ({}, "2Gi"),
    "engine.memoryFraction": (GPU, "0.8"),
    "engine.vision": ({}, {"maxImagesPerRequest": 8}),
    "engine.cudaGraphs": (GPU, {"enabled": False}),
    "engine.modelImpl": ({}, "blade"),
    "engine.quant": ({}, "int8"),
    "engine.enableTritonMla": ({}, True),
    "engine.lora": ({}, {}),
    "engine.speculative": ({}, {"method": "ngram"}),
    "engine.deterministic": ({}, True),
    "engine.task": ({}, "embed"),
    "engine.pooling": ({}, "mean"),
    "engine.chatTemplate": ({}, {"inline": "{{ messages }}"}),
    "engine.toolCallParser": ({}, "hermes"),
    "engine.reasoningParser": ({}, "none"),
    "engine.jsonWarmup": ({}, True),
    "engine.apiServers": ({}, 2),
    "engine.extraArgs": ({}, ["--block_size", "32"]),
    "engine.env": ({}, [{"name": "A", "value": "b"}]),
    "engine.resources": ({}, RESOURCES),
    "engine.gpus": ({}, {"count": 1}),
    "engine.shmSize": ({}, "2Gi"),
    "engine.podTemplate": ({}, LABELLED),
    "check.mode": ({}, "Warn"),
    "check.items": ({}, ["shm"]),
    "replicas": ({}, 3),
    "scaling": ({}, {"mode": "Concurrency", "max": 3, "target": {"concurrency": 8}}),
    "adapters": (LORA, [{"name": "a", "uri": "file:///adapters/a"}]),
    "adapterSelector": (LORA, {}),
    "router.replicas": ({"router": {"replicas": 2}}, 3),
    "router.scaling": ({}, "External"),
    "router.workers": ({}, 2),
    "router.policy": ({}, "roundRobin"),
    "router.auth": ({}, {"keysSecret": {"name": "keys"}}),
    "router.allowClientPriority": ({}, True),
    "router.tls": ({}, {"secretName": "tls"}),
    "router.limits": ({"router": {"limits": {"concurrent": 3}}}, {"concurrent": 4}),
    "router.models": ({}, [{"name": "qwen", "aliases": ["gpt"]}]),
    "router.queue": ({}, {"maxRequests": 9}),
    "router.hold": ({}, {"maxRequests": 9}),
    "router.retry": ({}, {"maxTries": 2}),
    "router.slowStart": ({}, "10s"),
    "router.streamCommentInterval": ({}, "5s"),
    "router.prefixIndexBytes": ({}, "64Mi"),
    "router.maxBodyBytes": ({}, "32Mi"),
    "router.maxImages": ({}, 8),
    "router.maxPartBytes": ({}, "4Mi"),
    "router.cors": ({}, {"allowOrigins": ["*"]}),
    "router.accessLog": ({}, True),
    "router.ui": ({}, {"enabled": False}),
    "router.image": ({}, "router:7"),
    "router.resources": ({}, RESOURCES),
    "router.podTemplate": ({}, LABELLED),
    "rollout.maxSurge": ({}, 2),
    "rollout.maxUnavailable": ({}, 1),
    "rollout.paused": ({}, True),
    "rollout.window": ({}, {"cron": "0 2 * * 6", "duration": "2h"}),
    "rollout.progressDeadline": ({}, "1h"),
    "rollout.rollback": ({}, "Off"),
    "rollout.canary": ({}, {"steps": [5, 50], "shadow": {"share": 20}}),
    "rollout.drainTimeout": ({}, "5m"),
    "rollout.revisionHistoryLimit": ({}, 1),
    "pricing": ({}, {"currency": "EUR", "perEngineHour": "2.50"}),
    "security.networkPolicy": ({}, False),
    "security.engineToken": ({}, False),
    "tracing": ({}, {"endpoint": "http://collector:4318"}),
    "logFormat": ({}, "json"),
}
"""By field: the rest of a spec, and another value. Fields of objects below count with the object."""
WITH_KEY = Defaults(engine_image="engine:1", router_image="operator:1", internal_key=b"k" * 32)


def fields(model: type[BaseModel] = LLMServiceSpec, prefix: str = "") -> Iterator[str]:
    """The fields of the spec: those of its sections, and of the spec itself where they are no section."""
    for name, info in model.model_fields.items():
        alias = info.alias or name
        kind = info.annotation
        if not prefix and isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from fields(kind, f"{alias}.")
        else:
            yield f"{prefix}{alias}"


def with_value(spec: dict[str, Any], field: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(spec)
    section, _, name = field.rpartition(".")
    (changed.setdefault(section, {}) if section else changed)[name] = value
    return changed


def templates(obj: Object) -> tuple[str, str, str]:
    """Hashes of the spec of engines and of the templates of engines and routers."""
    typed = parse_service(obj)
    router = router_objects(typed, WITH_KEY)[-1]["spec"]["template"]
    return spec_hash(typed), revision_of(pod_template(typed, WITH_KEY)), revision_of(router)


def effect(field: str) -> str:
    rest, value = SAMPLES[field]
    before, after = service(copy.deepcopy(rest)), service(with_value(rest, field, value))
    assert before["spec"] != after["spec"]
    old, new = templates(before), templates(after)
    # While the hash of the spec is the same, the stored template is: what would be rendered now restarts nothing.
    engines, routers = old[0] != new[0] and old[1] != new[1], old[2] != new[2]
    words = [*["engines"] * engines, *["routers"] * routers]
    return f"{' and '.join(words)} roll" if words else "in place"


def documented() -> dict[str, str]:
    rows = re.findall(r"^\| (`spec[^|]*`) \| (in place|[a-z ]+ roll) \|$", DOCS.read_text(), re.MULTILINE)
    return {field: words for names, words in rows for field in re.findall(r"`spec\.([\w.]+)`", names)}


def test_every_field_has_a_sample() -> None:
    assert {*SAMPLES} == {*fields()}, "give a new field a sample here, and a row in docs/rollouts.md"


@pytest.mark.parametrize("field", SAMPLES)
def test_what_a_field_restarts_is_documented(field: str) -> None:
    assert documented().get(field) == effect(field), f"{field}: {effect(field)}"


def test_undo_restores_every_field_that_rolls_engines_and_no_other() -> None:
    restored = {*RESTORED, *(f"{part}.{name}" for part, name in RESTORED_FIELDS)}
    for field in SAMPLES:
        section = field.partition(".")[0]
        if effect(field).startswith("engines"):
            assert {section, field} & restored, field
            rest, value = SAMPLES[field]
            kept = restorable(service(with_value(rest, field, value)))
            found: Any = kept["spec"][section]
            assert field == section or field.partition(".")[2] in found
