"""What pods get from the cluster: the model's volume, the hub token, devices, scheduling, the internal token."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import pytest
from operator_support.mini_cluster import service

from blade_operator.model.objects import Object
from blade_operator.render import (
    Defaults,
    pod_template,
    revision_of,
    router_objects,
    service_objects,
    spec_hash,
)
from blade_operator.render.internal_token import internal_token
from blade_operator.spec import parse_service

DEFAULTS = Defaults(engine_image="engine:1", router_image="operator:1")
WITH_KEY = dataclasses.replace(DEFAULTS, internal_key=b"k" * 32)


def pod(spec: dict[str, Any], defaults: Defaults = DEFAULTS) -> Object:
    """The engine pod's spec."""
    return dict(pod_template(parse_service(service(spec)), defaults)["spec"])


def named(items: list[Object], name: str) -> Object:
    return next(item for item in items if item["name"] == name)


def containers(spec: Object) -> dict[str, Object]:
    return {each["name"]: each for each in [*spec.get("initContainers", []), *spec["containers"]]}


def of_kind(kind: str, objects: list[Object]) -> list[Object]:
    return [obj for obj in objects if obj["kind"] == kind]


def hub(**model: Any) -> dict[str, Any]:
    return {"model": {"uri": "hf://a/b", **model}}


@pytest.mark.parametrize(
    ("uri", "folder"), [("pvc://store/qwen/v1.0", "/models/qwen/v1.0"), ("pvc://store", "/models")]
)
def test_a_model_on_a_claim_is_mounted_read_only_and_never_fetched(uri: str, folder: str) -> None:
    spec = pod({"model": {"uri": uri}})
    source = {"claimName": "store", "readOnly": True}
    assert named(spec["volumes"], "models") == {"name": "models", "persistentVolumeClaim": source}
    assert list(containers(spec)) == ["check", "engine"]
    for container in containers(spec).values():
        assert {"name": "models", "mountPath": "/models", "readOnly": True} in container["volumeMounts"]
        assert container["args"][container["args"].index("--model") + 1] == folder
        assert "HF_HOME" not in {entry["name"] for entry in container.get("env", [])}


@pytest.mark.parametrize(
    ("cache", "source"),
    [
        ({}, {"emptyDir": {}}),
        ({"claimName": "mine"}, {"persistentVolumeClaim": {"claimName": "mine"}}),
        ({"size": "1Gi"}, {"persistentVolumeClaim": {"claimName": "qwen-models"}}),
    ],
)
def test_downloads_go_where_the_cache_says(cache: dict[str, Any], source: Object) -> None:
    spec = pod(hub(cache=cache))
    assert named(spec["volumes"], "models") == {"name": "models", **source}
    assert spec == pod(hub(cache=cache))
    if not cache:
        assert spec == pod(hub())


def test_a_claim_is_rendered_only_when_the_cache_has_a_size() -> None:
    made = service_objects(parse_service(service(hub(cache={"size": "20Gi"}))), DEFAULTS)
    [claim] = of_kind("PersistentVolumeClaim", made)
    # Without a class the cluster's default one: not the empty class, which would be no class at all.
    assert claim["spec"] == {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "20Gi"}}}
    for cache in ({}, {"claimName": "mine"}):
        made = service_objects(parse_service(service(hub(cache=cache))), DEFAULTS)
        assert of_kind("PersistentVolumeClaim", made) == []


def test_engines_share_the_machine_that_can_mount_their_cache_and_spread_otherwise() -> None:
    [term] = pod(hub(cache={"size": "1Gi"}))["affinity"]["podAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    labels = {"serving.bladellm.io/name": "qwen", "serving.bladellm.io/role": "engine"}
    assert term == {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    for spec in (pod(hub(cache={"size": "1Gi", "accessModes": ["ReadWriteMany"]})), pod(hub(cache={"claimName": "m"}))):
        assert "affinity" not in spec
        [constraint] = spec["topologySpreadConstraints"]
        assert (constraint["topologyKey"], constraint["whenUnsatisfiable"]) == (
            "kubernetes.io/hostname",
            "ScheduleAnyway",
        )


def test_a_grown_cache_or_another_class_is_no_new_revision() -> None:
    def template_hash(**cache: Any) -> str:
        return spec_hash(parse_service(service(hub(cache=cache))))

    assert template_hash(size="1Gi") == template_hash(size="2Gi") == template_hash(size="1Gi", storageClassName="fast")
    several = {
        template_hash(size="1Gi"),
        template_hash(size="1Gi", accessModes=["ReadWriteMany"]),
        template_hash(claimName="a"),
        template_hash(),
    }
    assert len({*several, template_hash(claimName="b")}) == 5


def test_only_the_download_sees_the_hubs_token() -> None:
    spec = pod(hub(tokenSecretRef={"name": "hf", "key": "secret"}))
    for name, container in containers(spec).items():
        tokens = [entry for entry in container["env"] if entry["name"] == "HF_TOKEN"]
        reference = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "secret"}}}
        assert tokens == ([reference] if name == "fetch" else [])


@pytest.mark.parametrize(
    ("uri", "required", "optional"),
    [
        (
            "s3://models/qwen",
            {name: name for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")},
            {"AWS_SESSION_TOKEN", "AWS_REGION"},
        ),
        (
            "oss://models/qwen",
            {name: name for name in ("OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET")},
            {"OSS_SESSION_TOKEN", "OSS_REGION"},
        ),
        ("oci://registry.team:5000/acme/qwen:v1", {"DOCKER_AUTH_CONFIG": ".dockerconfigjson"}, set()),
    ],
)
def test_only_the_download_sees_credentials(uri: str, required: dict[str, str], optional: set[str]) -> None:
    spec = pod({"model": {"uri": uri, "credentialsSecretRef": {"name": "keys"}, "cache": {"claimName": "kept"}}})
    assert list(containers(spec)) == ["fetch", "check", "engine"]
    for name, container in containers(spec).items():
        found = {
            entry["name"]: entry["valueFrom"]["secretKeyRef"] for entry in container["env"] if "valueFrom" in entry
        }
        expected = {variable: {"name": "keys", "key": key} for variable, key in required.items()}
        expected |= {variable: {"name": "keys", "key": variable, "optional": True} for variable in optional}
        assert found == (expected if name == "fetch" else {})
        values = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert (values["HF_HOME"], values.get("HF_HUB_OFFLINE")) == ("/models", None if name == "fetch" else "1")
        assert container["args"][container["args"].index("--model") + 1] == uri
        assert {"name": "models", "mountPath": "/models"} in container["volumeMounts"]
    assert named(spec["volumes"], "models")["persistentVolumeClaim"] == {"claimName": "kept"}


def test_a_model_of_modelscope_has_a_revision_and_a_token() -> None:
    spec = pod({"model": {"uri": "modelscope://a/b", "revision": "v2", "tokenSecretRef": {"name": "ms"}}})
    for name, container in containers(spec).items():
        tokens = [entry for entry in container["env"] if entry["name"] == "MODELSCOPE_API_TOKEN"]
        reference = {"name": "MODELSCOPE_API_TOKEN", "valueFrom": {"secretKeyRef": {"name": "ms", "key": "token"}}}
        assert tokens == ([reference] if name == "fetch" else [])
        assert container["args"][container["args"].index("--model") + 1] == "modelscope://a/b@v2"


def test_engine_and_check_get_the_same_device_and_the_download_none() -> None:
    gpus = {"count": 1, "resource": "amd.com/gpu"}
    spec = pod(hub() | {"engine": {"gpus": gpus, "resources": {"limits": {"memory": "8Gi"}}}})
    limits = {name: container["resources"]["limits"] for name, container in containers(spec).items()}
    assert limits == {
        "fetch": {"memory": "8Gi"},
        "check": {"memory": "8Gi", "amd.com/gpu": "1"},
        "engine": {"memory": "8Gi", "amd.com/gpu": "1"},
    }
    assert "limits" not in containers(pod({"engine": {"gpus": {"count": 0}}}))["engine"]["resources"]


@pytest.mark.parametrize(
    ("gpus", "ranks", "devices"),
    [
        ({}, 1, None),
        ({"tensorParallel": 1}, 1, None),
        ({"tensorParallel": 3}, 3, None),
        ({"count": 1}, 1, "1"),
        ({"count": 8}, 8, "8"),
        ({"count": 2, "tensorParallel": 2}, 2, "2"),
    ],
)
def test_engine_and_check_have_as_many_ranks_as_devices_unless_they_compute_on_cpus(
    gpus: dict[str, Any], ranks: int, devices: str | None
) -> None:
    rendered = containers(pod({"engine": {"gpus": gpus}}))
    for name in ("check", "engine"):
        args = rendered[name]["args"]
        flags = args[args.index("--tensor_parallel_size") :][:2] if "--tensor_parallel_size" in args else []
        assert flags == ([] if ranks == 1 else ["--tensor_parallel_size", str(ranks)])
        limits = rendered[name].get("resources", {}).get("limits", {})
        assert limits == ({} if devices is None else {"nvidia.com/gpu": devices})
    assert rendered["engine"]["resources"]["requests"] == {"cpu": f"{250 * ranks}m", "memory": f"{512 * ranks}Mi"}


def test_to_name_the_ranks_that_there_are_anyway_is_the_same_pod() -> None:
    assert pod({"engine": {"gpus": {"count": 2}}}) == pod({"engine": {"gpus": {"count": 2, "tensorParallel": 2}}})
    assert pod({}) == pod({"engine": {"gpus": {"tensorParallel": 1}}})


def test_engine_and_check_divide_experts_alike() -> None:
    rendered = containers(pod({"engine": {"gpus": {"tensorParallel": 2, "expertParallel": True}}}))
    assert all("--enable_expert_parallel=true" in rendered[name]["args"] for name in ("check", "engine"))
    rendered = containers(pod({"engine": {"gpus": {"tensorParallel": 2}}}))
    assert not any("expert" in str(rendered[name]["args"]) for name in ("check", "engine"))


def test_the_check_of_a_machine_plans_for_it_alone_and_meets_nobody() -> None:
    rendered = containers(pod({"engine": {"gpus": {"tensorParallel": 4, "nodes": 2}}}))
    check, engine = rendered["check"], rendered["engine"]
    assert "check_memory_fit" in check["args"][check["args"].index("--items") + 1]
    machine = ["--nnodes", "2", "--node_rank", "$(BLADE_NODE_RANK)"]
    assert check["args"][-4:] == machine
    assert engine["args"][engine["args"].index("--nnodes") :][:4] == machine
    assert named(check["env"], "BLADE_NODE_RANK") == named(engine["env"], "BLADE_NODE_RANK")
    assert "BLADE_LEADER" not in str(check)


def test_each_machine_of_an_engine_finds_and_downloads_adapters() -> None:
    gpus = {"tensorParallel": 2, "nodes": 2}
    adapters = {"engine": {"gpus": gpus, "lora": {}}, "adapters": [{"name": "sql", "uri": "hf://a/sql"}]}
    spec = pod(adapters | hub(tokenSecretRef={"name": "hub", "key": "token"}, cache={"claimName": "store"}))
    engine = containers(spec)["engine"]
    assert "--enable_lora=true" in engine["args"]
    assert "--nnodes" in engine["args"]
    env = {entry["name"]: entry for entry in engine["env"]}
    assert env["HF_HOME"]["value"] == "/models"
    assert env["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "token"}
    assert "HF_HUB_OFFLINE" not in env
    assert {"name": "models", "mountPath": "/models"} in engine["volumeMounts"]
    claimed = containers(pod({**adapters, "model": {"uri": "pvc://store/qwen"}, "adapters": []}))["engine"]
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in claimed["volumeMounts"]


def test_the_token_is_mounted_where_the_internal_port_is_served_or_queried() -> None:
    typed = parse_service(service(hub()))
    spec = pod(hub(), WITH_KEY)
    variable = {"name": "BLADE_INTERNAL_TOKEN_FILE", "value": "/etc/bladellm-internal/token"}
    mount = {"name": "internal", "mountPath": "/etc/bladellm-internal", "readOnly": True}
    [router] = of_kind("Deployment", router_objects(typed, WITH_KEY))
    everything = containers(spec) | containers(router["spec"]["template"]["spec"])
    have = {name for name, each in everything.items() if variable in each["env"] and mount in each["volumeMounts"]}
    assert have == {"fetch", "engine", "router"}
    assert "BLADE_INTERNAL" not in str(everything["check"])
    [secret] = of_kind("Secret", service_objects(typed, WITH_KEY))
    for where in (spec, router["spec"]["template"]["spec"]):
        assert named(where["volumes"], "internal")["secret"] == {"secretName": secret["metadata"]["name"]}
    token = internal_token(b"k" * 32, "team", "qwen", "0f0f")
    assert base64.b64decode(secret["data"]["token"]).decode() == token
    assert token not in str(spec) + str(router)


def test_the_tokens_value_is_in_no_revision_and_without_a_key_there_is_none() -> None:
    other = dataclasses.replace(DEFAULTS, internal_key=b"x" * 32)
    typed = parse_service(service())
    assert revision_of(pod_template(typed, WITH_KEY)) == revision_of(pod_template(typed, other))
    without = [*service_objects(typed, DEFAULTS), *router_objects(typed, DEFAULTS), pod_template(typed, DEFAULTS)]
    assert "bladellm-internal" not in str(without)
    assert "k" * 32 not in repr(WITH_KEY)


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, {"requests": {"cpu": "250m", "memory": "512Mi"}}),
        ({"requests": {"cpu": "2"}}, {"requests": {"cpu": "2", "memory": "512Mi"}}),
        # Kubernetes takes a limit for the request that is not there.
        ({"limits": {"memory": "8Gi"}}, {"requests": {"cpu": "250m"}, "limits": {"memory": "8Gi"}}),
        ({"limits": {"cpu": "1", "memory": "8Gi"}}, {"limits": {"cpu": "1", "memory": "8Gi"}}),
    ],
)
def test_no_engine_is_of_the_class_best_effort(resources: Object, expected: Object) -> None:
    [engine] = pod({"engine": {"resources": resources}})["containers"]
    assert engine["resources"] == expected


def test_an_engine_with_a_gpu_requests_memory_too() -> None:
    [engine] = pod({"engine": {"gpus": {"count": 1}}})["containers"]
    assert engine["resources"]["requests"] == {"cpu": "250m", "memory": "512Mi"}
    assert engine["resources"]["limits"] == {"nvidia.com/gpu": "1"}


def test_on_openshift_no_pod_names_its_user_or_group() -> None:
    defaults = dataclasses.replace(WITH_KEY, openshift=True)
    objects = router_objects(parse_service(service()), defaults)
    [deployment] = of_kind("Deployment", objects)
    for spec in (pod({}, defaults), deployment["spec"]["template"]["spec"]):
        security = spec["securityContext"]
        assert not {"runAsUser", "runAsGroup", "fsGroup", "supplementalGroups"} & set(security)
        assert security["runAsNonRoot"] is True
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            assert "runAsUser" not in container["securityContext"]
    assert {"runAsUser", "runAsGroup", "fsGroup"} <= set(pod({})["securityContext"])


def test_policies_let_in_routers_and_the_operator_and_nobody_else() -> None:
    engine, router = of_kind("NetworkPolicy", service_objects(parse_service(service()), DEFAULTS))
    [from_router, from_operator, from_prometheus] = engine["spec"]["ingress"]
    assert [each["port"] for each in from_router["ports"]] == [8081, 9081]
    assert [each["port"] for each in from_operator["ports"]] == [9081]
    [operator] = from_operator["from"]
    assert operator["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "bladellm-system"}
    assert operator["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "bladellm-operator"}
    [prometheus] = from_prometheus["from"]
    assert [each["port"] for each in from_prometheus["ports"]] == [8081]
    [everyone, inside] = router["spec"]["ingress"]
    assert everyone == {"ports": [{"protocol": "TCP", "port": 8080}]}
    assert inside == {
        "from": [*from_router["from"], operator, prometheus],
        "ports": [{"protocol": "TCP", "port": 9080}],
    }
    spec = {"security": {"networkPolicy": False}}
    assert of_kind("NetworkPolicy", service_objects(parse_service(service(spec)), DEFAULTS)) == []


def test_policies_let_in_the_prometheus_that_the_installation_names() -> None:
    def peers(**named: Any) -> list[Object]:
        defaults = dataclasses.replace(DEFAULTS, **named)
        engine, router = of_kind("NetworkPolicy", service_objects(parse_service(service()), defaults))
        found = [each for rule in engine["spec"]["ingress"][2:] for each in rule["from"]]
        assert router["spec"]["ingress"][1]["from"][2:] == found
        return found

    def namespaces(*names: str) -> Object:
        among = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(names)}
        return {"matchExpressions": [among]}

    labels = {"app.kubernetes.io/name": "prometheus"}
    assert peers() == [{"namespaceSelector": namespaces("monitoring"), "podSelector": {"matchLabels": labels}}]
    assert peers(prometheus_namespaces=("a", "b"), prometheus_labels={}) == [
        {"namespaceSelector": namespaces("a", "b"), "podSelector": {"matchLabels": {}}}
    ]
    assert peers(prometheus_namespaces=()) == []


def test_a_router_may_follow_its_own_configuration_and_endpoints_and_nothing_else() -> None:
    objects = router_objects(parse_service(service()), DEFAULTS)
    [role], [binding], [deployment] = (of_kind(kind, objects) for kind in ("Role", "RoleBinding", "Deployment"))
    [configuration, endpoints] = role["rules"]
    assert configuration["resourceNames"] == ["qwen-router"]
    assert (endpoints["resources"], endpoints["verbs"]) == (["endpointslices"], ["list", "watch"])
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    [subject] = binding["subjects"]
    assert subject["name"] == deployment["spec"]["template"]["spec"]["serviceAccountName"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"][container["args"].index("--config_map") + 1] == "qwen-router"
    # Another identity gets the same right.
    spec = {"router": {"podTemplate": {"spec": {"serviceAccountName": "mesh"}}}}
    [binding] = of_kind("RoleBinding", router_objects(parse_service(service(spec)), DEFAULTS))
    assert binding["subjects"][0]["name"] == "mesh"


def test_an_overlay_of_the_engine_is_a_new_revision_and_one_of_the_router_is_not() -> None:
    overlay = {"podTemplate": {"spec": {"nodeSelector": {"disk": "ssd"}}}}
    plain, engine, router = (parse_service(service(spec)) for spec in ({}, {"engine": overlay}, {"router": overlay}))
    assert spec_hash(plain) == spec_hash(router) != spec_hash(engine)
    assert revision_of(pod_template(plain, DEFAULTS)) != revision_of(pod_template(engine, DEFAULTS))
