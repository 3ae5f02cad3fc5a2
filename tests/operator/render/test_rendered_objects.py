"""Rendered objects against golden files, and what must hold for every one of them.

The golden files hold the objects of each case (``operator_support/rendering.py``) as YAML: those of one case in full,
those of the others as a difference from it (``operator_support/golden.py``). After a change that is meant, write them
anew with ``UPDATE_GOLDEN=1 pytest tests/operator/render/test_rendered_objects.py`` and read what changed before
committing it. A changed engine pod template is a new revision: it restarts no engine by itself (the template of a
running revision is kept).
"""

from __future__ import annotations

import os
from typing import Any, get_args

import pytest
from operator_support import golden
from operator_support.mini_cluster import service
from operator_support.rendering import CASES, DEFAULTS, FOREIGN, WITH_KEY, args, containers, render, render_case

from blade_llm.api.common import pooling, served_model
from blade_llm.check.items import parse_items
from blade_llm.cli.server_flags import GROUPS
from blade_llm.text.reasoning import REASONING_PARSERS
from blade_llm.text.tool_parsers import NO_PARSER, TOOL_PARSERS
from blade_llm.vllm_options import VLLM_OPTIONS, VllmOption
from blade_operator.cluster.local.fields import require_supported
from blade_operator.model.objects import Object
from blade_operator.render import pod_template, revision_of, spec_hash
from blade_operator.render.engine import CHECK_ITEMS
from blade_operator.spec import parse_service
from blade_operator.spec.api_fields import Pooling, ReasoningParser, Task, ToolCallParser
from blade_operator.spec.errors import SpecError
from blade_operator.spec.fields import CheckItemName
from blade_operator.spec.model_fields import KvCacheQuantization, QuantizationMethod
from blade_operator.spec.rules.service import OWNED_FLAGS
from blade_protocol.labels import CHAT_TEMPLATE, RESTARTED_AT


@pytest.mark.parametrize("case", CASES)
def test_objects_are_those_in_the_golden_file(case: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        golden.path(case).write_text(golden.content(case))
    assert golden.path(case).read_text() == golden.content(case)
    assert golden.read(case) == golden.rendered(case)


def test_there_is_a_golden_file_for_each_case_and_no_other() -> None:
    assert {*golden.FOLDER.iterdir()} == {*map(golden.path, CASES)}


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


@pytest.mark.parametrize("case", [case for case in CASES if case not in FOREIGN])
def test_the_local_runtime_runs_every_object(case: str) -> None:
    for obj in render_case(case):
        require_supported(obj)


def test_a_pod_may_live_half_a_minute_longer_than_its_drain() -> None:
    for obj in render(CASES["every_field"]):
        if obj["kind"] == "Deployment":
            assert obj["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 120
    flags = args(render(CASES["every_field"]), "engine")
    assert flags[flags.index("--drain_timeout") + 1] == "90"


def test_a_hub_model_is_downloaded_first_and_then_never_requested_again() -> None:
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


@pytest.mark.parametrize(
    ("change", "new"),
    [
        ({"engine": {"maxNumSeqs": 4}}, True),
        ({"engine": {"chatTemplate": {"inline": "x"}}}, True),
        ({"engine": {"task": "embed"}}, True),
        ({"engine": {"gpus": {"tensorParallel": 2}}}, True),
        ({"model": {"uri": "file:///models/other"}}, True),
        ({"check": {"mode": "Off"}}, True),
        ({"rollout": {"drainTimeout": "1m"}}, True),
        ({"replicas": 5}, False),
        ({"router": {"policy": "roundRobin", "replicas": 3}}, False),
        ({"router": {"models": [{"name": "qwen", "aliases": ["a"]}], "auth": {"keysSecret": {"name": "a"}}}}, False),
        ({"rollout": {"maxSurge": 2}}, False),
        # Saying what is the default anyway is no change.
        ({"engine": {"dtype": "auto", "shmSize": "1Gi", "task": "generate", "apiServers": 1}}, False),
        ({"engine": {"gpus": {"count": 0, "pipelineParallel": 1, "nodes": 1, "expertParallel": False}}}, False),
    ],
)
def test_only_what_changes_engine_pods_is_a_new_revision(change: dict[str, Any], new: bool) -> None:
    before = parse_service(service())
    after = parse_service(service(change))
    assert (spec_hash(before) != spec_hash(after)) is new
    changed = revision_of(pod_template(before, DEFAULTS)) != revision_of(pod_template(after, DEFAULTS))
    assert changed is new


def test_a_restart_request_is_a_new_revision() -> None:
    plain, restarted = parse_service(service()), parse_service(service(annotations={RESTARTED_AT: "now"}))
    assert spec_hash(plain) != spec_hash(restarted)
    assert revision_of(pod_template(plain, DEFAULTS)) != revision_of(pod_template(restarted, DEFAULTS))


def test_items_of_the_check_are_those_the_check_knows() -> None:
    assert set(CHECK_ITEMS) == set(get_args(CheckItemName))
    assert parse_items(",".join(CHECK_ITEMS.values())) == tuple(CHECK_ITEMS.values())


def test_parsers_are_those_the_engine_has() -> None:
    assert set(get_args(ToolCallParser)) == {NO_PARSER, *TOOL_PARSERS}
    assert set(get_args(ReasoningParser)) == {NO_PARSER, *REASONING_PARSERS}
    assert (get_args(Task), get_args(Pooling)) == (get_args(served_model.Task), get_args(pooling.Pooling))


def test_quantisation_is_what_the_engine_has() -> None:
    flags = {flag.name: flag.choices for group in GROUPS.values() for flag in group}
    # `int` is said with bits.
    assert {*flags["quant"]} - {"none"} == {*get_args(QuantizationMethod)} - {"int"} == {"int8", "int4", "w8a8"}
    assert get_args(KvCacheQuantization) == flags["kv_cache_quant"]


@pytest.mark.parametrize(
    ("quantization", "engine", "flags"),
    [
        ({"method": "int8"}, {}, ["--quant", "int8"]),
        ({"method": "int", "bits": 4}, {}, ["--quant", "int4"]),
        ({"method": "int"}, {}, ["--quant", "int8"]),
        ({"method": "w8a8"}, {}, ["--quant", "w8a8"]),
        ({"kvCache": "mix_f852i4"}, {}, ["--kv_cache_quant", "mix_f852i4"]),
        ({"kvCache": "int8"}, {"quant": "int4"}, ["--quant", "int4", "--kv_cache_quant", "int8"]),
        ({"kvCache": "no_quant"}, {}, []),
        ({}, {}, []),
    ],
)
def test_the_check_plans_with_the_quantisation_of_the_engine(
    quantization: dict[str, Any], engine: dict[str, Any], flags: list[str]
) -> None:
    model = {"uri": "file:///models/qwen", "quantization": quantization}
    objects = render({"model": model, "engine": engine})
    for name in ("check", "engine"):
        words = args(objects, name)
        given = [words[at : at + 2] for at, word in enumerate(words) if word in ("--quant", "--kv_cache_quant")]
        assert [each for pair in given for each in pair] == flags


@pytest.mark.parametrize(
    ("vision", "flags"),
    [
        (None, []),
        ({}, []),
        ({"encoderCacheBytes": 1 << 20}, ["--encoder_cache_bytes", "1048576"]),
        ({"encoderCacheBytes": "1Gi"}, ["--encoder_cache_bytes", "1073741824"]),
        ({"enabled": True, "maxImagesPerRequest": 8}, []),
        ({"enabled": False, "encoderCacheBytes": "1Gi"}, ["--with_visual=false"]),
    ],
)
def test_the_check_plans_with_the_images_of_the_engine(vision: dict[str, Any] | None, flags: list[str]) -> None:
    objects = render({"engine": {"vision": vision} if vision is not None else {}})
    for name in ("check", "engine"):
        words = args(objects, name)
        given = [words[at : at + 2] for at, word in enumerate(words) if word == "--encoder_cache_bytes"]
        given += [[word] for word in words if word.startswith("--with_visual")]
        assert [each for group in given for each in group] == flags


def test_moving_from_the_older_field_restarts_nothing() -> None:
    older = parse_service(service({"model": {"uri": "file:///m"}, "engine": {"quant": "int8"}}))
    newer = parse_service(service({"model": {"uri": "file:///m", "quantization": {"method": "int8"}}}))
    assert revision_of(pod_template(older, DEFAULTS)) == revision_of(pod_template(newer, DEFAULTS))


@pytest.mark.parametrize(
    "option", [option for option in VLLM_OPTIONS.values() if option.to in OWNED_FLAGS], ids=lambda option: option.name
)
def test_vllms_names_of_flags_with_a_field_are_refused_too(option: VllmOption) -> None:
    for name in (option.name, option.name.replace("_", "-"), *([f"no-{option.name}"] if option.switch else [])):
        with pytest.raises(SpecError, match=f"have a field of their own.* --{option.name}[, ]"):
            parse_service(service({"engine": {"extraArgs": [f"--{name}", "1"]}}))


def test_engine_flags_are_flags_the_server_has() -> None:
    known = {flag.name for flags in GROUPS.values() for flag in flags}
    cases = (
        *("every_field", "gpu_memory", "preset", "quantization", "tensor_parallel", "embeddings", "no_graphs"),
        *("no_vision", "speculative", "lookahead", "eagle3", "mtp", "nodes", "expert_parallel", "router"),
    )
    words = [arg for case in cases for arg in args(render(CASES[case]), "engine")]
    used = {word.removeprefix("--").partition("=")[0] for word in words if word.startswith("--")}
    assert used <= known
    assert set(OWNED_FLAGS) <= known
    assert used - {"disable_prompt_cache"} == set(OWNED_FLAGS) - {"lora_modules"}


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
