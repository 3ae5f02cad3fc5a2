"""The cases of the golden files: services of every kind, and the objects rendered for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from blade_operator.model.controllers import CONTROLLERS, LEADER_WORKER_SET, STATEFUL_SET, pod_template_of
from blade_operator.model.objects import Object
from blade_operator.render import (
    Defaults,
    controller_revision,
    engine_deployment,
    engine_group,
    engine_objects,
    nodes_of,
    pod_template,
    restorable,
    revision_of,
    router_objects,
    service_objects,
    spec_hash,
)
from blade_operator.spec import LLMService, parse_service
from operator_support.mini_cluster import service

DEFAULTS = Defaults(engine_image="bladellm/engine:0", router_image="bladellm/operator:0")
WITH_KEY = dataclasses.replace(DEFAULTS, internal_key=b"a key of thirty-two random bytes")
WATCHING_KEYS = dataclasses.replace(DEFAULTS, watch_keys=True)
LEADER_WORKER_SETS = dataclasses.replace(DEFAULTS, group_kind=LEADER_WORKER_SET)
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
    "bucket": {
        "model": {
            "uri": "s3://models/qwen/v1",
            "cache": {"claimName": "models"},
            "credentialsSecretRef": {"name": "bucket-reader"},
        },
        "engine": {"env": [{"name": "AWS_ENDPOINT_URL_S3", "value": "http://minio.storage:9000"}]},
    },
    "registry": {
        "model": {"uri": "oci://registry.team:5000/acme/qwen:v1", "credentialsSecretRef": {"name": "registry-reader"}}
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
        "tracing": {"endpoint": "https://collector.monitoring", "samplingRatio": "0.01"},
        "logFormat": "json",
        "model": {"uri": "file:///models/qwen", "servedNames": ["qwen"]},
        "engine": {
            "image": "example.org/engine:1",
            "dtype": "float32",
            "contextLength": 2048,
            "maxNumSeqs": 16,
            "maxWaitingRequests": 500,
            "kvCacheBytes": "1Gi",
            "vision": {"maxImagesPerRequest": 8, "encoderCacheBytes": "256Mi"},
            "chatTemplate": {"inline": "{% for message in messages %}\n{{ message.content }}\n{% endfor %}\n"},
            "toolCallParser": "hermes",
            "reasoningParser": "none",
            "jsonWarmup": True,
            "lora": {"maxGPU": 2, "maxCPU": 4, "maxRank": 8, "dtype": "float32"},
            "speculative": {"method": "ngram", "ngram": {"minMatch": 3}},
            "apiServers": 4,
            "extraArgs": ["--disable_prompt_cache"],
            "env": [{"name": "LANG", "value": "C.UTF-8"}],
            "resources": {"requests": {"cpu": 1, "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "4Gi"}},
            "shmSize": "2Gi",
        },
        "check": {"mode": "Warn", "items": ["shm", "memoryFit"]},
        "adapters": [{"name": "sql", "uri": "file:///adapters/sql", "replicas": 2}],
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
            "auth": {"keysSecret": {"name": "team-keys"}, "sharePrefixCache": True},
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
            "queue": {
                "endpointRequests": 32,
                "keyShare": "0.75",
                "maxRequests": 500,
                "maxBytes": "64Mi",
                "maxAge": "30s",
            },
            "hold": {"maxRequests": 16, "maxBytes": "1Mi", "maxAge": "2m"},
            "retry": {"maxTries": 2, "firstByteTimeout": "1m30s", "stallTimeout": "45s"},
            "slowStart": "20s",
            "streamCommentInterval": "5s",
            "allowClientPriority": True,
            "prefixIndexBytes": "64Mi",
            "maxBodyBytes": "32Mi",
            "maxImages": 16,
            "maxPartBytes": "4Mi",
            "cors": {"allowOrigins": ["https://chat.example.com"]},
            "accessLog": True,
            "ui": {"enabled": False},
        },
    },
    "adapters": {
        "engine": {"lora": {}},
        "adapters": [
            {"name": "sql-v1", "uri": "file:///adapters/sql-v1", "model": "sql", "weight": 90},
            {"name": "sql-v2", "uri": "file:///adapters/sql-v2", "model": "sql", "weight": 10},
            {"name": "support", "uri": "file:///adapters/support"},
        ],
    },
    "speculative": {
        "model": {"uri": "hf://Qwen/Qwen3-8B", "cache": {"claimName": "models"}},
        "engine": {
            "speculative": {
                "method": "draft",
                "draftModel": {"uri": "hf://Qwen/Qwen3-0.6B", "revision": "main"},
                "steps": 3,
                "disableAboveBatch": 16,
            }
        },
    },
    "lookahead": {
        "model": {"uri": "file:///models/qwen"},
        "engine": {"speculative": {"method": "lookahead", "lookahead": {"windowSize": 15, "gramSize": 5}}},
    },
    "eagle3": {
        "model": {"uri": "file:///models/qwen"},
        "engine": {"speculative": {"method": "eagle3", "draftModel": {"uri": "file:///models/head"}, "steps": 3}},
    },
    "mtp": {
        "model": {"uri": "file:///models/qwen"},
        "engine": {"speculative": {"method": "mtp", "steps": 1}},
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
            "cudaGraphs": {"batchSizes": [1, 2, 4], "maxBatchSize": 4, "tokenSizes": [64, 256], "maxTokens": 0},
            "modelImpl": "transformers",
            "quant": "int8",
            "enableTritonMla": True,
            "deterministic": True,
        },
    },
    "preset": {
        "model": {"uri": "file:///models/qwen"},
        "engine": {"preset": "longContext", "maxNumSeqs": 32},
    },
    "quantization": {
        "model": {
            "uri": "file:///models/qwen",
            "quantization": {"method": "int", "bits": 4, "kvCache": "fp8_e4m3"},
        },
    },
    "tensor_parallel": {
        "model": {"uri": "file:///models/qwen"},
        "engine": {"gpus": {"count": 4, "customAllReduce": True}, "resources": {"requests": {"memory": "64Gi"}}},
    },
    "cpu_ranks": {"model": {"uri": "file:///models/qwen"}, "engine": {"gpus": {"tensorParallel": 2}}},
    "expert_parallel": {
        "model": {"uri": "file:///models/mixtral"},
        "engine": {"gpus": {"count": 8, "expertParallel": True}},
    },
    "pipeline": {
        "model": {"uri": "file:///models/qwen"},
        "engine": {"gpus": {"count": 4, "pipelineParallel": 2}},
    },
    "nodes": {
        "model": {"uri": "hf://Qwen/Qwen2.5-72B-Instruct", "cache": {"claimName": "models"}},
        "replicas": 2,
        "engine": {
            "gpus": {
                "count": 16,
                "tensorParallel": 8,
                "pipelineParallel": 2,
                "nodes": 2,
                "topologyKey": "topology.kubernetes.io/rack",
            },
        },
    },
    "cpu_nodes": {
        "model": {"uri": "file:///models/qwen"},
        "engine": {"gpus": {"tensorParallel": 2, "nodes": 2}},
    },
    "adapters_of_nodes": {
        "model": {
            "uri": "hf://Qwen/Qwen2.5-72B-Instruct",
            "tokenSecretRef": {"name": "hub", "key": "token"},
            "cache": {"claimName": "models"},
        },
        "engine": {
            "gpus": {"count": 16, "tensorParallel": 8, "pipelineParallel": 2, "nodes": 2},
            "lora": {"maxGPU": 4},
        },
        "adapters": [{"name": "sql", "uri": "hf://acme/sql"}],
    },
    "leader_worker_sets": {
        "model": {"uri": "file:///models/qwen"},
        "engine": {"gpus": {"count": 16, "tensorParallel": 8, "pipelineParallel": 2, "nodes": 2}},
    },
    "embeddings": {
        "model": {"uri": "hf://acme/embedder"},
        "engine": {
            "task": "embed",
            "pooling": "mean",
            "chatTemplate": {"configMapKeyRef": {"name": "templates", "key": "acme.jinja"}},
        },
    },
    "no_vision": {
        "model": {"uri": "file:///models/qwen"},
        "engine": {"vision": {"enabled": False, "maxImagesPerRequest": 8, "encoderCacheBytes": "1Gi"}},
    },
    "no_graphs": {
        "model": {"uri": "file:///models/qwen"},
        "engine": {"gpus": {"count": 1}, "cudaGraphs": {"enabled": False, "batchSizes": [8]}},
    },
    "no_check": {"model": {"uri": "file:///models/qwen"}, "check": {"mode": "Off"}},
}


FOREIGN = {"leader_worker_sets"}
"""Cases with objects of a kind that clusters have from other software."""
_METADATA: dict[str, dict[str, Any]] = {
    "leader_worker_sets": {
        "labels": {"kueue.x-k8s.io/queue-name": "inference", "team": "search"},
        "annotations": {"leaderworkerset.sigs.k8s.io/exclusive-topology": "topology.kubernetes.io/rack", "note": "x"},
    }
}


def render(spec: dict[str, Any], defaults: Defaults = DEFAULTS, **metadata: Any) -> list[Object]:
    obj = service(spec, **metadata)
    typed = parse_service(obj)
    template = pod_template(typed, defaults)
    return [
        *service_objects(typed, defaults),
        *engine_objects(typed),
        controller_revision(typed, {"template": template, "service": restorable(obj)}, 1, spec_hash(typed)),
        *_workloads(typed, template, STATEFUL_SET if defaults.group_kind == "auto" else defaults.group_kind),
        *router_objects(typed, defaults),
    ]


def _workloads(service: LLMService, template: Object, kind: str) -> list[Object]:
    revision, replicas = revision_of(template), service.spec.replicas
    if nodes_of(template) == 1:
        return [engine_deployment(service, revision, template, replicas)]
    return [
        engine_group(service, revision, template, number, "0123456789abcdef"[: 16 * number], kind)
        for number in range(replicas)
    ]


_DEFAULTS = {"internal_token": WITH_KEY, "router": WATCHING_KEYS, "leader_worker_sets": LEADER_WORKER_SETS}


def render_case(case: str) -> list[Object]:
    return render(CASES[case], _DEFAULTS.get(case, DEFAULTS), **_METADATA.get(case, {}))


def containers(obj: Object) -> Iterator[Object]:
    pod = pod_template_of(obj)["spec"]
    yield from pod.get("initContainers", ())
    yield from pod["containers"]


def args(objects: list[Object], name: str) -> list[str]:
    deployments = [obj for obj in objects if obj["kind"] in CONTROLLERS]
    found, *_ = [entry for obj in deployments for entry in containers(obj) if entry["name"] == name]
    return list(found["args"])
