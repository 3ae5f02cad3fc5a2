"""Parsing an LLMService: what is valid, and the message for what is not."""

from __future__ import annotations

import contextlib
import copy
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from blade_llm.hub.model import HubModel
from blade_llm.hub.resolve import parse_model
from blade_operator.spec import SpecError, apply_defaults, parse_adapter, parse_service
from blade_operator.spec.crd.printer_columns import age, lookup
from blade_operator.spec.quantity import format_bytes, parse_bytes, parse_duration, parse_quantity

ROOT = Path(__file__).parents[3]
URIS = (
    "hf://organisation/name, modelscope://organisation/name, s3://bucket/prefix, oss://bucket/prefix, "
    "oci://registry/name:tag, pvc://claim/folder or file:///absolute/folder"
)


def manifest(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.bladellm.io/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": "qwen"},
        "spec": {"model": {"uri": "file:///m"}} | spec,
    }


def problems(obj: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse_service(obj)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("uri", "origin"),
    [
        ("hf://Qwen/Qwen3-0.6B", "hf"),
        ("modelscope://Qwen/Qwen3-0.6B", "modelscope"),
        ("s3://a.team-models/llama_3/step=1000/v1.2+x/", "s3"),
        ("oss://models/qwen", "oss"),
        ("oci://ghcr.io/acme/llama-3.1__8b/q.8", "oci"),
        ("oci://registry.team:5000/acme/tiny:v1.0-rc", "oci"),
        ("oci://10.0.0.1:5000/tiny@sha256:" + "0f" * 32, "oci"),
    ],
)
def test_models_to_download_are_what_the_engine_reads(uri: str, origin: str) -> None:
    parsed = parse_service(manifest(model={"uri": uri}))
    read = parse_model(uri)
    assert isinstance(read, HubModel)
    assert (parsed.spec.model.scheme, parsed.spec.model.downloaded, read.origin) == (origin, True, origin)


@pytest.mark.parametrize(
    "uri",
    [
        *("s3://models", "s3://m/x", "S3://models/x", "s3://models/a..b", "s3://models//x", "s3://models/.x"),
        *("oci://registry", "oci://registry/Name", "oci://r/n:a..b", "oci://r/n:v1@sha256:" + "0" * 64, "oci:///n"),
        *("modelscope://a/b@v1", "hf://a/b@v1", "gs://models/x", "https://example.com/model"),
    ],
)
def test_other_uris_are_refused(uri: str) -> None:
    [problem] = problems(manifest(model={"uri": uri}))
    assert problem.startswith(f"spec.model.uri: must be {URIS}, not the string ")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_valid(path: Path) -> None:
    objects = list(yaml.safe_load_all(path.read_text()))
    services = [obj for obj in objects if obj["kind"] == "LLMService"]
    assert all(parse_service(obj).spec.model.uri for obj in services)
    assert services
    assert all(parse_adapter(obj).uri for obj in objects if obj["kind"] == "LoRAAdapter")


def test_defaults_are_those_of_the_reference() -> None:
    service = parse_service(manifest())
    spec = service.spec
    assert (service.namespace, service.served_names) == ("default", ("qwen",))
    assert (spec.replicas, spec.check.mode, spec.router.policy, spec.router.replicas) == (1, "Enforce", "auto", 1)
    assert (spec.rollout.max_surge, spec.rollout.max_unavailable, spec.rollout.drain_timeout) == (1, 0, "10m")
    assert spec.check.items == ("shm", "pbEnv", "flopsDiff", "memoryFit", "modelFiles")


def test_defaults_filled_in_by_the_store_are_those_of_the_models() -> None:
    filled = apply_defaults(manifest())
    assert filled["spec"]["rollout"] == {
        "maxSurge": 1, "maxUnavailable": 0, "drainTimeout": "10m", "revisionHistoryLimit": 5, "paused": False,
        "progressDeadline": "30m", "rollback": "Automatic",
    }  # fmt: skip
    assert parse_service(filled).spec == parse_service(manifest()).spec
    assert apply_defaults(filled) == filled
    kept = manifest(rollout={"maxSurge": 0, "maxUnavailable": 2})
    before = copy.deepcopy(kept)
    assert apply_defaults(kept)["spec"]["rollout"]["maxSurge"] == 0
    assert kept == before


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"engine": {"maxNumSeq": 4}}, "spec.engine.maxNumSeq: unknown field; did you mean maxNumSeqs?"),
        ({"engine": {"max_num_seqs": 4}}, "spec.engine.max_num_seqs: unknown field; did you mean maxNumSeqs?"),
        ({"maxNumSeqs": 4}, "spec.maxNumSeqs: unknown field; did you mean spec.engine.maxNumSeqs?"),
        (
            {"zzz": 1},
            "spec.zzz: unknown field; known here: model, engine, check, replicas, scaling, adapters, adapterSelector, "
            "router, rollout, pricing, security, tracing, logFormat",
        ),
        (
            {"engine": {"env": [{"name": "A", "valeu": "x"}]}},
            "spec.engine.env[0].valeu: unknown field; did you mean value?",
        ),
        (
            {"engine": {"resources": {"limits": {"memroy": "1Gi"}}}},
            "spec.engine.resources.limits.memroy: unknown field; did you mean memory?",
        ),
        ({"replicas": "two"}, 'spec.replicas: must be an integer, not the string "two"'),
        ({"replicas": True}, "spec.replicas: must be an integer, not true"),
        ({"replicas": 1.5}, "spec.replicas: must be an integer, not 1.5"),
        ({"replicas": -1}, "spec.replicas: must be at least 0, not -1"),
        ({"replicas": 1001}, "spec.replicas: must be at most 1000, not 1001"),
        ({"replicas": None}, "spec.replicas: must be an integer, not null"),
        ({"engine": []}, "spec.engine: must be an object, not a list"),
        ({"engine": {"contextLength": 8}}, "spec.engine.contextLength: must be at least 16, not 8"),
        (
            {"engine": {"dtype": "bf16"}},
            'spec.engine.dtype: must be one of auto, float32, float16, bfloat16, not the string "bf16"; '
            "did you mean bfloat16?",
        ),
        (
            {"check": {"mode": "enforce"}},
            'spec.check.mode: must be one of Enforce, Warn, Off, not the string "enforce"; did you mean Enforce?',
        ),
        # YAML 1.1 reads a bare Off as false.
        ({"check": {"mode": False}}, "spec.check.mode: must be one of Enforce, Warn, Off, not false; put it in quotes"),
        ({"check": {"items": []}}, "spec.check.items: must have at least 1 item, not 0"),
        ({"check": {"items": ["shm", "shm"]}}, "spec.check.items: shm is listed more than once"),
        (
            {"check": {"items": ["memoryfit"]}},
            "spec.check.items[0]: must be one of shm, pbEnv, flopsDiff, memoryFit, modelFiles, not the string "
            '"memoryfit"; did you mean memoryFit?',
        ),
        ({"engine": {"extraArgs": "--x"}}, 'spec.engine.extraArgs: must be a list, not the string "--x"'),
        ({"engine": {"extraArgs": [8]}}, "spec.engine.extraArgs[0]: must be a string, not 8; put it in quotes"),
        (
            {"engine": {"env": [{"name": "A", "value": True}]}},
            "spec.engine.env[0].value: must be a string, not true; put it in quotes",
        ),
        ({"engine": {"env": [{"value": "x"}]}}, "spec.engine.env[0].name: is required"),
        ({"engine": {"env": [{"name": "A"}, {"name": "A"}]}}, "spec.engine.env: A is listed more than once"),
        (
            {"engine": {"env": [{"name": "1A"}]}},
            "spec.engine.env[0].name: must be letters, digits and _, not starting with a digit, not the string "
            '"1A"',
        ),
        (
            {"engine": {"kvCacheBytes": "1 GB"}},
            'spec.engine.kvCacheBytes: must be a quantity like 512Mi or 4Gi, not the string "1 GB"',
        ),
        (
            {"engine": {"gpus": {"count": 1}, "memoryFraction": "0.0"}},
            'spec.engine.memoryFraction: must be a string of a number above 0 and at most 1, like "0.9", '
            'not the string "0.0"',
        ),
        (
            {"engine": {"gpus": {"count": 1}, "cudaGraphs": {"batchSizes": [2, 2]}}},
            "spec.engine.cudaGraphs.batchSizes: 2 is listed more than once",
        ),
        ({"engine": {"kvCacheBytes": 0}}, "spec.engine.kvCacheBytes: must be a quantity like 512Mi or 4Gi, not 0"),
        (
            {"engine": {"resources": {"limits": {"cpu": True}}}},
            "spec.engine.resources.limits.cpu: must be a quantity like 2, 500m or 4Gi, not true",
        ),
        ({"engine": {"image": "a" * 513}}, "spec.engine.image: must be at most 512 characters, not 513"),
        (
            {"engine": {"extraArgs": ["--x"] * 65}},
            "spec.engine.extraArgs: must have at most 64 items, not 65",
        ),
        ({"model": {}}, "spec.model.uri: is required"),
        (
            {"model": {"uri": "./model"}},
            f"spec.model.uri: must be {URIS}, "
            'not the string "./model"',
        ),
        (
            {"model": {"uri": "file://model"}},
            f"spec.model.uri: must be {URIS}, "
            'not the string "file://model"',
        ),
        (
            {"rollout": {"drainTimeout": "10 minutes"}},
            'spec.rollout.drainTimeout: must be a duration like 30s, 10m or 1h30m, not the string "10 minutes"',
        ),
        ({"router": {"replicas": 0}}, "spec.router.replicas: must be at least 1, not 0"),
        *(
            (
                {"router": {"models": [{"name": "qwen", "defaults": {"temperature": 0, field: True}}]}},
                f"spec.router.models[0].defaults: {field} is what a request says itself; it has no default, remove it",
            )
            for field in ("model", "messages", "prompt", "input", "stream")
        ),
        *(
            (
                {"router": {"models": [{"name": "qwen", "defaults": {field: 65}, "maxTokens": 64}]}},
                f"spec.router.models[0]: defaults.{field} is 65, more than maxTokens, 64; lower it",
            )
            for field in ("max_tokens", "max_completion_tokens", "max_output_tokens")
        ),
        (
            {"model": {"uri": "pvc://models/../etc"}},
            f"spec.model.uri: must be {URIS}, "
            'not the string "pvc://models/../etc"',
        ),
        ({"engine": {"gpus": {"count": 65}}}, "spec.engine.gpus.count: must be at most 64, not 65"),
        ({"engine": {"gpus": {"tensorParallel": 0}}}, "spec.engine.gpus.tensorParallel: must be at least 1, not 0"),
        ({"engine": {"gpus": {"tensorParallel": 65}}}, "spec.engine.gpus.tensorParallel: must be at most 64, not 65"),
        (
            {"engine": {"gpus": {"tensor_parallel": 2}}},
            "spec.engine.gpus.tensor_parallel: unknown field; did you mean tensorParallel?",
        ),
        (
            {"engine": {"gpus": {"count": 4, "tensorParallel": 2}}},
            "spec.engine.gpus.tensorParallel: tensorParallel x pipelineParallel must be count, one rank a "
            "device: change one of them",
        ),
        (
            {"engine": {"gpus": {"count": 4, "nodes": 3}}},
            "spec.engine.gpus.nodes: must divide tensorParallel x pipelineParallel, the ranks",
        ),
        (
            {"engine": {"gpus": {"count": 2, "topologyKey": "rack"}}},
            "spec.engine.gpus.topologyKey: is what several nodes share: remove it, or set nodes",
        ),
        (
            {"engine": {"gpus": {"tensorParallel": 2, "customAllReduce": True}}},
            "spec.engine.gpus.customAllReduce: is for devices: remove it, or set count",
        ),
        (
            {"engine": {"gpus": {"count": 1, "resource": "gpu"}}},
            "spec.engine.gpus.resource: must be a resource name like nvidia.com/gpu or amd.com/gpu, "
            'not the string "gpu"',
        ),
        (
            {"security": {"networkPolicy": "no"}},
            'spec.security.networkPolicy: must be true or false, not the string "no"',
        ),
        (
            {"engine": {"podTemplate": {"nodeSelector": {}}}},
            "spec.engine.podTemplate.nodeSelector: unknown field; known here: metadata, spec",
        ),
        (
            {"engine": {"podTemplate": {"spec": []}}},
            "spec.engine.podTemplate.spec: must be an object, not a list",
        ),
        (
            {"engine": {"podTemplate": {"metadata": {"labels": {"a": "b c"}}}}},
            "spec.engine.podTemplate.metadata.labels.a: must be a label value: letters, digits and - _ . inside, "
            'not the string "b c"',
        ),
        (
            {"engine": {"podTemplate": {"spec": {"containers": [{"name": "engine", "command": ["sh"]}]}}}},
            "spec.engine.podTemplate.spec.containers[0].command: is the operator's in container engine; remove it",
        ),
        (
            {"engine": {"podTemplate": {"spec": {"initContainers": [{"name": "check", "args": []}]}}}},
            "spec.engine.podTemplate.spec.initContainers[0].args: is the operator's in container check; remove it",
        ),
        (
            {
                "router": {
                    "podTemplate": {"spec": {"containers": [{"name": "router", "env": [{"name": "BLADE_HOST"}]}]}}
                }
            },
            "spec.router.podTemplate.spec.containers[0].env[0].name: BLADE_HOST is set by the operator; "
            "use another name",
        ),
        (
            {"router": {"podTemplate": {"spec": {"containers": [{"image": "x"}]}}}},
            "spec.router.podTemplate.spec.containers[0].name: is required: it says what to merge with, or names "
            "something new",
        ),
        (
            {"router": {"podTemplate": {"spec": {"volumes": None}}}},
            "spec.router.podTemplate.spec.volumes: must be a list, not null",
        ),
    ],
)  # fmt: skip
def test_bad_input_names_the_field_and_what_to_write(spec: dict[str, Any], expected: str) -> None:
    assert problems(manifest(**spec)) == [expected]


def test_the_frame_of_the_object_is_checked_too() -> None:
    assert problems([]) == ["<root>: must be an object, not a list"]
    assert problems({}) == [
        "apiVersion: must be serving.bladellm.io/v1alpha1; it is missing",
        "kind: must be LLMService; it is missing",
        "metadata.name: is required and must be a string",
        "spec: is required",
    ]
    wrong = manifest() | {"apiVersion": "v1", "kind": "Pod", "speck": {}}
    assert problems(wrong) == [
        "speck: unknown field; did you mean spec?",
        'apiVersion: must be serving.bladellm.io/v1alpha1; not the string "v1"',
        'kind: must be LLMService; not the string "Pod"',
    ]
    assert problems(manifest() | {"spec": None}) == ["spec: must be an object, not null"]


def test_every_problem_is_reported_at_once() -> None:
    found = problems(manifest(replicas="two", engine={"maxNumSeq": 4, "dtype": 3}, router={"policy": "fastest"}))
    assert [line.split(":")[0] for line in found] == [
        "spec.engine.dtype", "spec.engine.maxNumSeq", "spec.replicas", "spec.router.policy",
    ]  # fmt: skip


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    ),
    st.sampled_from(["spec", "engine", "model", "env", "cache", "limits", "metadata", "overlay", "containers"]),
)
def test_no_input_whatever_ends_in_anything_but_a_spec_error(junk: Any, place: str) -> None:
    obj = manifest()
    match place:
        case "spec" | "metadata":
            obj[place] = junk
        case "engine" | "model":
            obj["spec"][place] = junk
        case "env":
            obj["spec"]["engine"] = {"env": junk}
        case "limits":
            obj["spec"]["engine"] = {"resources": {"limits": junk}}
        case "overlay":
            obj["spec"]["engine"] = {"podTemplate": {"spec": junk}}
        case "containers":
            obj["spec"]["engine"] = {"podTemplate": {"spec": {"containers": junk}}}
        case "cache":
            obj["spec"]["model"] = {"uri": "hf://a/b", "cache": junk}
    with contextlib.suppress(SpecError):
        parse_service(obj)


@pytest.mark.parametrize(
    ("text", "amount"), [(2, "2"), ("500m", "0.5"), ("1Gi", "1073741824"), ("1.5k", "1500"), ("0", "0")]
)
def test_quantities(text: int | str, amount: str) -> None:
    assert parse_quantity(text) == Decimal(amount)


@pytest.mark.parametrize("text", ["", "1 Gi", "Gi", "-1", "1GiB", "1e3x"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


def test_durations() -> None:
    assert [parse_duration(text) for text in ("30s", "10m", "1h30m", "2h")] == [30, 600, 5400, 7200]
    for text in ("", "10", "1d", "m"):
        with pytest.raises(ValueError, match="is not a duration"):
            parse_duration(text)


@given(st.integers(0, 10**15))
def test_formatted_bytes_are_within_one_percent(count: int) -> None:
    assert abs(parse_quantity(format_bytes(count)) - count) <= Decimal("0.01") * count
    assert parse_bytes(count) == count


def test_ages_read_as_kubectl_prints_them() -> None:
    start = datetime.fromisoformat("2026-01-01T00:00:00Z")
    shown = {
        5: "5s", 119: "119s", 130: "2m10s", 600: "10m", 3 * 3600: "3h", 3 * 3600 + 60: "3h1m", 9 * 3600: "9h",
        50 * 3600: "2d2h", 30 * 86400: "30d", 800 * 86400: "2y70d",
    }  # fmt: skip
    for seconds, text in shown.items():
        assert age("2026-01-01T00:00:00Z", start + timedelta(seconds=seconds)) == text


def test_a_json_path_that_is_not_understood_is_an_error() -> None:
    with pytest.raises(ValueError, match="not understood"):
        lookup({"a": [1]}, ".a[0]")
