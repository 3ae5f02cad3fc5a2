"""Rendered objects against golden files, and what must hold for every one of them.

The files under ``golden/`` are the objects of each case as YAML. After a change that is meant, write them anew with
``UPDATE_GOLDEN=1 pytest tests/operator/test_render.py`` and read the difference before committing it. A changed engine
pod template is a new revision: it restarts no engine by itself (the template of a running revision is kept).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml
from operator_support.mini_cluster import service

from blade_llm.api import pooling, served_model
from blade_llm.api.served_model import NO_PARSER
from blade_llm.check.items import parse_items
from blade_llm.cli.server_flags import GROUPS
from blade_llm.text.reasoning import REASONING_PARSERS
from blade_llm.text.tool_parsers import TOOL_PARSERS
from blade_operator.cluster.local.fields import require_supported
from blade_operator.objects import Object
from blade_operator.render import (
    Defaults,
    controller_revision,
    engine_deployment,
    engine_objects,
    pod_template,
    revision_of,
    router_objects,
    service_objects,
    spec_hash,
)
from blade_operator.render.engine import CHECK_ITEMS
from blade_operator.render.router_config import policy_name, router_config
from blade_operator.spec import parse_service
from blade_operator.spec.api_fields import Pooling, ReasoningParser, Task, ToolCallParser
from blade_operator.spec.fields import CheckItemName
from blade_operator.spec.router_fields import Hold, Policy, Queue
from blade_operator.spec.rules import OWNED_FLAGS
from blade_protocol.labels import CHAT_TEMPLATE, RESTARTED_AT
from blade_protocol.routing import HoldConfig, Limits, ModelConfig, PolicyName, QueueConfig, RouterConfig
from blade_router.arguments import parse_arguments
from blade_router.config import parse_config

GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = Path(__file__).parents[2] / "examples"
DEFAULTS = Defaults(engine_image="bladellm/engine:0", router_image="bladellm/operator:0")
WITH_KEY = dataclasses.replace(DEFAULTS, internal_key=b"a key of thirty-two random bytes")
CASES: dict[str, dict[str, Any]] = {
    "file_model": {"model": {"uri": "file:///models/qwen"}, "replicas": 2},
    "hub_model": {
        "model": {
            "uri": "hf://Qwen/Qwen2.5-0.5B-Instruct",
            "revision": "main",
            "servedNames": ["qwen", "qwen2.5-0.5b"],
            "cache": {"claimName": "models"},
        }
    },
    "hub_cache": {
        "model": {
            "uri": "hf://meta-llama/Llama-3.2-1B-Instruct",
            "cache": {"size": "20Gi", "storageClassName": "fast"},
            "tokenSecretRef": {"name": "hugging-face"},
        },
        "security": {"networkPolicy": False},
    },
    "gpu_pvc": {
        "model": {"uri": "pvc://model-store/qwen/v1"},
        "engine": {
            "gpus": {"count": 1, "resource": "amd.com/gpu"},
            "resources": {"limits": {"memory": "32Gi"}},
        },
    },
    "internal_token": {"model": {"uri": "hf://Qwen/Qwen2.5-0.5B-Instruct"}},
    "overlay": {
        "model": {"uri": "file:///models/qwen"},
        "engine": {
            "podTemplate": {
                "metadata": {"labels": {"team": "search"}, "annotations": {"example.org/note": "x"}},
                "spec": {
                    "nodeSelector": {"disk": "ssd"},
                    "securityContext": {"runAsUser": None, "fsGroup": 1000},
                    "tolerations": [{"key": "gpu", "operator": "Exists"}],
                    "topologySpreadConstraints": [
                        {"topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
                    ],
                    "initContainers": [
                        {
                            "name": "credentials",
                            "image": "example.org/credentials:1",
                            "command": ["credentials"],
                            "securityContext": {
                                "allowPrivilegeEscalation": False,
                                "capabilities": {"drop": ["ALL"]},
                            },
                        }
                    ],
                    "containers": [
                        {
                            "name": "engine",
                            "env": [{"name": "LANG", "value": "C.UTF-8"}],
                            "volumeMounts": [{"name": "extra", "mountPath": "/models"}],
                            "livenessProbe": {"failureThreshold": 12},
                        }
                    ],
                    "volumes": [
                        {"name": "shm", "emptyDir": {"sizeLimit": "8Gi"}},
                        {"name": "extra", "persistentVolumeClaim": {"claimName": "extra", "readOnly": True}},
                    ],
                },
            }
        },
        "router": {"podTemplate": {"spec": {"priorityClassName": "high", "serviceAccountName": "mesh"}}},
    },
    "every_field": {
        "model": {"uri": "file:///models/qwen", "servedNames": ["qwen"]},
        "engine": {
            "image": "example.org/engine:1",
            "dtype": "float32",
            "contextLength": 2048,
            "maxNumSeqs": 16,
            "kvCacheBytes": "1Gi",
            "chatTemplate": {"inline": "{% for message in messages %}\n{{ message.content }}\n{% endfor %}\n"},
            "toolCallParser": "hermes",
            "reasoningParser": "none",
            "jsonWarmup": True,
            "apiServers": 4,
            "extraArgs": ["--disable_prompt_cache"],
            "env": [{"name": "LANG", "value": "C.UTF-8"}],
            "resources": {"requests": {"cpu": 1, "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "4Gi"}},
            "shmSize": "2Gi",
        },
        "check": {"mode": "Warn", "items": ["shm", "memoryFit"]},
        "replicas": 3,
        "router": {
            "replicas": 2,
            "policy": "leastRequest",
            "image": "example.org/router:1",
            "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "256Mi"}},
        },
        "rollout": {"maxSurge": 0, "maxUnavailable": 1, "drainTimeout": "90s", "revisionHistoryLimit": 2},
    },
    "router": {
        "model": {"uri": "file:///models/qwen", "servedNames": ["qwen", "qwen-short"]},
        "router": {
            "replicas": 2,
            "workers": 2,
            "policy": "kvAware",
            "auth": {"keysSecret": {"name": "team-keys"}},
            "tls": {"secretName": "team-certificate"},
            "models": [
                {"name": "qwen", "aliases": ["gpt-4o-mini"]},
                {
                    "name": "qwen-short",
                    "defaults": {"temperature": 0.6, "chat_template_kwargs": {"enable_thinking": False}},
                    "maxTokens": 256,
                    "limits": {"tokensPerMinute": 100000},
                },
            ],
            "queue": {"endpointRequests": 32, "maxRequests": 500, "maxBytes": "64Mi", "maxAge": "30s"},
            "hold": {"maxRequests": 16, "maxBytes": "1Mi", "maxAge": "2m"},
            "retry": {"maxTries": 2, "firstByteTimeout": "1m30s"},
            "slowStart": "20s",
            "prefixIndexBytes": "64Mi",
            "cors": {"allowOrigins": ["https://chat.example.com"]},
            "accessLog": True,
        },
    },
    "limits": {
        "model": {"uri": "file:///models/qwen"},
        "router": {"limits": {"requestsPerMinute": 600, "concurrent": 8}, "hold": {"maxRequests": 0}},
    },
    "gpu_memory": {
        "model": {"uri": "file:///models/qwen"},
        "engine": {
            "gpus": {"count": 1},
            "memoryFraction": "0.85",
            "cudaGraphs": {"batchSizes": [1, 2, 4], "maxBatchSize": 4},
            "quant": "int8",
            "deterministic": True,
        },
    },
    "embeddings": {
        "model": {"uri": "hf://acme/embedder"},
        "engine": {
            "task": "embed",
            "pooling": "mean",
            "chatTemplate": {"configMapKeyRef": {"name": "templates", "key": "acme.jinja"}},
        },
    },
    "no_graphs": {
        "model": {"uri": "file:///models/qwen"},
        "engine": {"gpus": {"count": 1}, "cudaGraphs": {"enabled": False, "batchSizes": [8]}},
    },
    "no_check": {"model": {"uri": "file:///models/qwen"}, "check": {"mode": "Off"}},
}


def render(spec: dict[str, Any], defaults: Defaults = DEFAULTS, **metadata: Any) -> list[Object]:
    typed = parse_service(service(spec, **metadata))
    template = pod_template(typed, defaults)
    return [
        *service_objects(typed, defaults),
        *engine_objects(typed),
        controller_revision(typed, template, 1, spec_hash(typed)),
        engine_deployment(typed, revision_of(template), template, typed.spec.replicas),
        *router_objects(typed, defaults),
    ]


def render_case(case: str) -> list[Object]:
    return render(CASES[case], WITH_KEY if case == "internal_token" else DEFAULTS)


def containers(obj: Object) -> Iterator[Object]:
    pod = obj["spec"]["template"]["spec"]
    yield from pod.get("initContainers", ())
    yield from pod["containers"]


def args(objects: list[Object], name: str) -> list[str]:
    deployments = [obj for obj in objects if obj["kind"] == "Deployment"]
    [found] = [entry for obj in deployments for entry in containers(obj) if entry["name"] == name]
    return list(found["args"])


@pytest.mark.parametrize("case", CASES)
def test_objects_are_those_in_the_golden_file(case: str) -> None:
    text = yaml.safe_dump_all(render_case(case), sort_keys=False, width=120)
    path = GOLDEN / f"{case}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


@pytest.mark.parametrize("case", CASES)
def test_pods_are_restricted_and_explain_their_end(case: str) -> None:
    for obj in render_case(case):
        if obj["kind"] != "Deployment":
            continue
        pod = obj["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is (obj["metadata"]["name"] == "qwen-router")
        assert pod["enableServiceLinks"] is False
        # The kernel drops a SIGTERM for process 1 until it has set a handler; a pod deleted meanwhile would stay.
        assert pod["shareProcessNamespace"] is True
        assert pod["securityContext"]["runAsNonRoot"] is True
        for volume in pod["volumes"]:
            assert set(volume) - {"name"} < {
                *("configMap", "secret", "emptyDir", "persistentVolumeClaim", "projected", "downwardAPI")
            }
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(obj):
            if container["name"] not in ("fetch", "check", "engine", "router"):
                continue
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted <= {volume["name"] for volume in pod["volumes"]}
            names = [entry["name"] for entry in container.get("env", ())]
            assert len(names) == len(set(names))


@pytest.mark.parametrize("case", CASES)
def test_the_local_runtime_runs_every_object(case: str) -> None:
    for obj in render_case(case):
        require_supported(obj)


def test_a_pod_may_live_half_a_minute_longer_than_its_drain() -> None:
    for obj in render(CASES["every_field"]):
        if obj["kind"] == "Deployment":
            assert obj["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 120
    flags = args(render(CASES["every_field"]), "engine")
    assert flags[flags.index("--drain_timeout") + 1] == "90"


def test_a_hub_model_is_fetched_first_and_then_never_asked_for_again() -> None:
    objects = render(CASES["hub_model"])
    [deployment] = [obj for obj in objects if obj["kind"] == "Deployment" and "-engine-" in obj["metadata"]["name"]]
    assert [entry["name"] for entry in containers(deployment)] == ["fetch", "check", "engine"]
    offline = {
        entry["name"]: {"name": "HF_HUB_OFFLINE", "value": "1"} in entry["env"] for entry in containers(deployment)
    }
    assert offline == {"fetch": False, "check": True, "engine": True}
    for name in offline:
        found = args(objects, name)
        assert found[found.index("--model") + 1] == "hf://Qwen/Qwen2.5-0.5B-Instruct@main"


def test_what_the_user_sets_in_the_environment_wins() -> None:
    env = [{"name": "HF_HOME", "value": "/elsewhere"}, {"name": "HF_ENDPOINT", "value": "https://mirror.example"}]
    objects = render({"model": {"uri": "hf://a/b"}, "engine": {"env": env}})
    for obj in objects:
        if obj["kind"] == "Deployment" and "-engine-" in obj["metadata"]["name"]:
            for container in containers(obj):
                values = {entry["name"]: entry.get("value") for entry in container["env"]}
                assert (values["HF_HOME"], values["HF_ENDPOINT"]) == ("/elsewhere", "https://mirror.example")


def test_the_router_reads_its_configuration_as_the_router_parses_it() -> None:
    [config] = [obj for obj in render(CASES["every_field"]) if obj["kind"] == "ConfigMap"]
    assert msgspec.json.decode(config["data"]["router.json"], type=RouterConfig) == RouterConfig(
        policy="least-request", models=(ModelConfig(name="qwen"),), hold=HoldConfig(max_requests=256)
    )
    flags = args(render(CASES["every_field"]), "router")
    assert flags[flags.index("--service") + 1] == "qwen-engine"


@pytest.mark.parametrize(
    ("change", "new"),
    [
        ({"engine": {"maxNumSeqs": 4}}, True),
        ({"engine": {"chatTemplate": {"inline": "x"}}}, True),
        ({"engine": {"task": "embed"}}, True),
        ({"model": {"uri": "file:///models/other"}}, True),
        ({"check": {"mode": "Off"}}, True),
        ({"rollout": {"drainTimeout": "1m"}}, True),
        ({"replicas": 5}, False),
        ({"router": {"policy": "roundRobin", "replicas": 3}}, False),
        ({"router": {"models": [{"name": "qwen", "aliases": ["a"]}], "auth": {"keysSecret": {"name": "a"}}}}, False),
        ({"rollout": {"maxSurge": 2}}, False),
        # Saying what is the default anyway is no change.
        ({"engine": {"dtype": "auto", "shmSize": "1Gi", "task": "generate", "apiServers": 1}}, False),
    ],
)
def test_only_what_changes_engine_pods_is_a_new_revision(change: dict[str, Any], new: bool) -> None:
    before = parse_service(service())
    after = parse_service(service(change))
    assert (spec_hash(before) != spec_hash(after)) is new
    changed = revision_of(pod_template(before, DEFAULTS)) != revision_of(pod_template(after, DEFAULTS))
    assert changed is new


def test_asking_for_a_restart_is_a_new_revision() -> None:
    plain, asked = parse_service(service()), parse_service(service(annotations={RESTARTED_AT: "now"}))
    assert spec_hash(plain) != spec_hash(asked)
    assert revision_of(pod_template(plain, DEFAULTS)) != revision_of(pod_template(asked, DEFAULTS))


def test_items_of_the_check_are_those_the_check_knows() -> None:
    assert set(CHECK_ITEMS) == set(get_args(CheckItemName))
    assert parse_items(",".join(CHECK_ITEMS.values())) == tuple(CHECK_ITEMS.values())


def test_parsers_are_those_the_engine_has() -> None:
    assert set(get_args(ToolCallParser)) == {NO_PARSER, *TOOL_PARSERS}
    assert set(get_args(ReasoningParser)) == {NO_PARSER, *REASONING_PARSERS}
    assert (get_args(Task), get_args(Pooling)) == (get_args(served_model.Task), get_args(pooling.Pooling))


def test_engine_flags_are_flags_the_server_has() -> None:
    known = {flag.name for flags in GROUPS.values() for flag in flags}
    cases = ("every_field", "gpu_memory", "embeddings", "no_graphs")
    words = [arg for case in cases for arg in args(render(CASES[case]), "engine")]
    used = {word.removeprefix("--").partition("=")[0] for word in words if word.startswith("--")}
    assert used <= known
    assert set(OWNED_FLAGS) <= known
    assert used - {"disable_prompt_cache"} == set(OWNED_FLAGS)


def test_policies_are_those_of_the_router_but_for_the_one_that_is_code() -> None:
    assert {policy_name(policy) for policy in get_args(Policy)} == set(get_args(PolicyName)) - {"external"}


def test_all_that_routers_follow_is_in_their_configuration() -> None:
    [config] = [obj for obj in render(CASES["router"]) if obj["kind"] == "ConfigMap"]
    assert msgspec.json.decode(config["data"]["router.json"], type=RouterConfig) == RouterConfig(
        policy="kv-aware",
        models=(
            ModelConfig(name="qwen", aliases=("gpt-4o-mini",)),
            ModelConfig(
                name="qwen-short",
                defaults={"temperature": 0.6, "chat_template_kwargs": {"enable_thinking": False}},
                max_tokens=256,
                limits=Limits(tokens_per_minute=100_000),
            ),
        ),
        queue=QueueConfig(endpoint_requests=32, max_requests=500, max_bytes=64 << 20, max_age=30),
        hold=HoldConfig(max_requests=16, max_bytes=1 << 20, max_age=120),
        cors_origins=("https://chat.example.com",),
    )
    limited = router_config(parse_service(service(CASES["limits"])))
    assert limited.anonymous == Limits(requests_per_minute=600, concurrent=8)
    assert limited.hold == HoldConfig()


def test_what_a_field_says_by_default_is_what_the_router_does_by_itself() -> None:
    plain = service({"router": {"queue": {"endpointRequests": 1}, "hold": {"maxRequests": 0}}})
    config = router_config(parse_service(plain))
    assert config.queue == QueueConfig(endpoint_requests=1)
    assert config.hold == HoldConfig()
    assert (Queue.model_fields["max_age"].default, Hold.model_fields["max_age"].default) == ("1m", "10m")


def test_a_plain_service_has_routers_that_an_older_image_can_run() -> None:
    flags = {word for word in args(render(CASES["file_model"]), "router") if word.startswith("--")}
    assert flags == {"--host", "--port", "--service", "--config", "--config_map", "--drain_timeout"}


@pytest.mark.parametrize("case", CASES)
def test_router_flags_are_flags_the_router_has(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.delenv("BLADE_ENDPOINTS_DIR", raising=False)
    values = {"$(BLADE_HOST)": "0.0.0.0", "$(BLADE_HTTP_PORT)": "8080"}
    options = parse_arguments([values.get(word, word) for word in args(render_case(case), "router")])
    assert (options.host, options.port, options.service) == ("0.0.0.0", 8080, "qwen-engine")


@pytest.mark.parametrize("case", CASES)
def test_routers_read_what_the_golden_files_tell_them(case: str) -> None:
    objects = yaml.safe_load_all((GOLDEN / f"{case}.yaml").read_text())
    [config] = [obj for obj in objects if obj["kind"] == "ConfigMap"]
    assert parse_config(config["data"]["router.json"].encode()) == router_config(parse_service(service(CASES[case])))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_routers_read_what_the_examples_tell_them(path: Path) -> None:
    objects = [obj for obj in yaml.safe_load_all(path.read_text()) if obj["kind"] == "LLMService"]
    for example in map(parse_service, objects):
        [config] = [obj for obj in router_objects(example, DEFAULTS) if obj["kind"] == "ConfigMap"]
        assert parse_config(config["data"]["router.json"].encode()) == router_config(example)


def test_routers_that_divide_limits_count_each_other() -> None:
    def peers(**router: Any) -> bool:
        return "--peers" in args(render({"model": {"uri": "file:///m"}, "router": router}), "router")

    assert not peers()
    assert peers(replicas=2)
    assert not peers(replicas=2, image="registry/router:older")
    assert peers(replicas=2, image="registry/router:older", limits={"concurrent": 1})
    assert peers(replicas=2, image="registry/router:older", queue={"endpointRequests": 8})
    assert peers(limits={"concurrent": 1})
    assert peers(auth={"keysSecret": {"name": "keys"}})
    assert peers(models=[{"name": "qwen", "limits": {"concurrent": 1}}])


def test_a_router_may_follow_the_secret_of_its_keys_where_the_operator_may_grant_that() -> None:
    def rules(defaults: Defaults) -> list[Object]:
        [role] = [obj for obj in render(CASES["router"], defaults) if obj["kind"] == "Role"]
        return [rule for rule in role["rules"] if rule["resources"] == ["secrets"]]

    [rule] = rules(DEFAULTS)
    assert (rule["resourceNames"], rule["verbs"]) == (["team-keys"], ["list", "watch"])
    assert "--keys_secret" in args(render(CASES["router"]), "router")
    mounted = dataclasses.replace(DEFAULTS, watch_keys=False)
    assert rules(mounted) == []
    flags = args(render(CASES["router"], mounted), "router")
    assert "--keys" in flags
    assert "--keys_secret" not in flags


def test_what_the_router_serves_with_tls_is_probed_and_named_so() -> None:
    objects = render(CASES["router"])
    [deployment] = [obj for obj in objects if obj["kind"] == "Deployment" and obj["metadata"]["name"] == "qwen-router"]
    [container] = containers(deployment)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
    [network] = [obj for obj in objects if obj["kind"] == "Service" and obj["metadata"]["name"] == "qwen-router"]
    [port] = network["spec"]["ports"]
    assert (port["name"], port["appProtocol"], port["port"], port["targetPort"]) == ("https", "https", 8080, "http")


def test_routers_and_the_operator_reach_the_internal_port_of_engines_and_nobody_else() -> None:
    policies = [obj for obj in render(CASES["internal_token"], WITH_KEY) if obj["kind"] == "NetworkPolicy"]
    [engines] = [obj["spec"] for obj in policies if obj["metadata"]["name"] == "qwen-engine"]
    selectors = [
        source["podSelector"]["matchLabels"]
        for rule in engines["ingress"]
        if {"protocol": "TCP", "port": 9081} in rule["ports"]
        for source in rule["from"]
    ]
    assert selectors == [
        {"serving.bladellm.io/name": "qwen", "serving.bladellm.io/role": "router"},
        {"app.kubernetes.io/name": "bladellm-operator"},
    ]


def test_a_chat_template_belongs_to_its_revision() -> None:
    def rendered(template: Any) -> Object:
        return pod_template(parse_service(service({"engine": {"chatTemplate": template}})), DEFAULTS)

    one, other = rendered({"inline": "{{ 1 }}\n"}), rendered({"inline": "{{ 2 }}\n"})
    assert revision_of(one) != revision_of(other)
    assert one["metadata"]["annotations"] == {CHAT_TEMPLATE: "{{ 1 }}\n"}
    [engine] = one["spec"]["containers"]
    flag = engine["args"].index("--chat_template")
    folder, _, file = engine["args"][flag + 1].rpartition("/")
    [volume] = [mount["name"] for mount in engine["volumeMounts"] if mount["mountPath"] == folder]
    [source] = [each for each in one["spec"]["volumes"] if each["name"] == volume]
    field = {"fieldPath": f"metadata.annotations['{CHAT_TEMPLATE}']"}
    assert source["downwardAPI"] == {"items": [{"path": file, "fieldRef": field}]}
    # One of the user's own ConfigMap says where it is, and no more.
    theirs = rendered({"configMapKeyRef": {"name": "templates"}})
    assert "annotations" not in theirs["metadata"]
    [source] = [each for each in theirs["spec"]["volumes"] if each["name"] == volume]
    assert source["configMap"] == {"name": "templates", "items": [{"key": "chat_template.jinja", "path": file}]}
