"""For each cross-field rule: specs that keep it and specs that break it. An API server must decide as we do."""

from __future__ import annotations

from typing import Any

from operator_support.rule_example import FILE, HUB, MODELSCOPE, OCI, OWN, S3, TEMPLATE, Example, spec_of
from operator_support.rule_examples_scaling import IDLE_TO_ZERO, SCALING
from operator_support.rule_examples_speculative import SPECULATIVE, draft


def _labels(labels: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"labels": labels}}


def _annotations(name: str) -> dict[str, Any]:
    return {"metadata": {"annotations": {name: "x"}}}


SERVED = {"servedNames": ["x", "y"]}


def _models(*models: dict[str, Any]) -> dict[str, Any]:
    return {"models": list(models)}


def _gpus(**gpus: int) -> dict[str, Any]:
    return spec_of(engine={"gpus": gpus})


def _quantized(engine: dict[str, Any], **quantization: Any) -> dict[str, Any]:
    return spec_of(model={"quantization": quantization}, engine=engine)


def _adapters(*adapters: dict[str, Any], uri: str = FILE, **spec: Any) -> dict[str, Any]:
    return spec_of(uri, engine={"lora": {}}, adapters=list(adapters), **spec)


def _selecting(*requirements: dict[str, Any]) -> dict[str, Any]:
    return _adapters(adapterSelector={"matchExpressions": [{"key": "team", **each} for each in requirements]})


V1 = {"name": "sql-v1", "uri": FILE, "model": "sql"}
V2 = {"name": "sql-v2", "uri": FILE, "model": "sql", "weight": 10}

EXAMPLES: tuple[Example, ...] = (
    Example("", "qwen", _adapters({"name": "sql", "uri": FILE}, {"name": "x", "uri": FILE, "replicas": 2})),
    Example("", "qwen", _adapters({"name": "sql", "uri": "hf://a/b"}, uri=HUB)),
    Example("", "qwen", spec_of(engine={"lora": {"maxGPU": 4, "maxCPU": 4}})),
    Example("spec.engine.lora.maxCPU", "qwen", spec_of(engine={"lora": {"maxGPU": 4, "maxCPU": 3}})),
    Example("spec.engine.lora", "qwen", spec_of(adapters=[{"name": "sql", "uri": FILE}]), "spec.adapters"),
    Example("spec.engine.lora", "qwen", spec_of(adapterSelector={}), "spec.adapterSelector"),
    Example("", "qwen", _adapters(adapterSelector={"matchLabels": {"example.org/team": "law"}})),
    Example("", "qwen", _selecting({"operator": "In", "values": ["a"]}, {"operator": "Exists"})),
    Example("spec.adapterSelector.matchExpressions", "qwen", _selecting({"operator": "NotIn"})),
    Example("spec.adapterSelector.matchExpressions", "qwen", _selecting({"operator": "Exists", "values": ["a"]})),
    Example("spec.model.servedNames", "qwen", _adapters({"name": "x", "uri": FILE}, model=SERVED)),
    Example("spec.adapters", "qwen", _adapters({"name": "sql", "uri": HUB}), "each uri"),
    Example("spec.adapters", "qwen", _adapters({"name": "sql", "uri": "pvc://b/x"}, uri="pvc://a/x"), "each uri"),
    Example("", "qwen", _adapters(V1, V2)),
    Example("", "qwen", _adapters({"name": "sql", "uri": FILE}, {**V2, "weight": 0})),
    Example("spec.adapters", "qwen", _adapters({**V1, "weight": 0}, {**V2, "weight": 0}), "a weight"),
    Example("spec.adapters", "qwen", _adapters({"name": "sql", "uri": FILE, "weight": 0}), "a weight"),
    Example("spec.adapters", "qwen", _adapters({"name": "sql", "uri": FILE, "model": "other"}, V2), "its own name"),
    Example("spec.model.servedNames", "qwen", _adapters({"name": "a", "uri": FILE, "model": "x"}, model=SERVED)),
    *SPECULATIVE,
    Example("", "a", spec_of()),
    Example("", "a-" + "b" * 38, spec_of()),
    Example("metadata.name", "a-" + "b" * 39, spec_of()),
    Example("metadata.name", "1qwen", spec_of()),
    Example("metadata.name", "qwen.3", spec_of()),
    Example("", "qwen-3", spec_of(HUB, model={"revision": "main", "cache": {"claimName": "models"}})),
    Example("spec.model.revision", "qwen", spec_of(model={"revision": "main"})),
    Example("spec.model.cache", "qwen", spec_of(model={"cache": {}})),
    *(
        Example("", "qwen", _quantized(engine, **quantization))
        for engine, quantization in (
            ({}, {}),
            ({}, {"method": "int"}),
            ({}, {"method": "int", "bits": 4}),
            ({}, {"method": "int8", "bits": 8}),
            ({}, {"method": "w8a8"}),
            ({"dtype": "bfloat16", "quant": "none"}, {"method": "int4", "kvCache": "mix_i8i4"}),
            ({"dtype": "float32", "quant": "int8"}, {"kvCache": "fp8_e4m3"}),
        )
    ),
    *(
        Example("spec.model.quantization.bits", "qwen", _quantized({}, **quantization))
        for quantization in (
            {"bits": 8},
            {"method": "int8", "bits": 4},
            {"method": "int4", "bits": 8},
            {"method": "w8a8", "bits": 8},
        )
    ),
    Example("spec.engine.quant", "qwen", _quantized({"quant": "int8"}, method="int8")),
    Example("spec.model.quantization.method", "qwen", _quantized({"dtype": "float32"}, method="int4")),
    Example("metadata.name", "qwen-", spec_of()),
    Example("", "qwen", spec_of(HUB, model={"tokenSecretRef": {"name": "hf"}, "cache": {}})),
    Example("spec.model.tokenSecretRef", "qwen", spec_of(model={"tokenSecretRef": {"name": "hf"}})),
    Example(
        "spec.model.tokenSecretRef.name",
        "qwen",
        spec_of(HUB, model={"tokenSecretRef": {"name": "hf"}}, engine={"env": [{"name": "HF_TOKEN", "value": "x"}]}),
    ),
    Example(
        "",
        "qwen",
        spec_of(
            MODELSCOPE,
            model={"tokenSecretRef": {"name": "ms"}, "revision": "master", "cache": {"size": 1}},
            engine={"env": [{"name": "HF_TOKEN", "value": "x"}]},
        ),
    ),
    Example(
        "spec.model.tokenSecretRef.name",
        "qwen",
        spec_of(
            MODELSCOPE,
            model={"tokenSecretRef": {"name": "ms"}},
            engine={"env": [{"name": "MODELSCOPE_API_TOKEN", "value": "x"}]},
        ),
    ),
    *(
        Example("", "qwen", spec_of(uri, model={"credentialsSecretRef": {"name": "keys"}, "cache": {"claimName": "m"}}))
        for uri in (S3, "oss://models/qwen", OCI)
    ),
    Example(
        "",
        "qwen",
        spec_of(
            S3,
            model={"credentialsSecretRef": {"name": "keys"}},
            engine={"env": [{"name": "AWS_ENDPOINT_URL_S3", "value": "http://minio:9000"}]},
        ),
    ),
    *(
        Example(
            "spec.model.credentialsSecretRef.name",
            "qwen",
            spec_of(
                uri,
                model={"credentialsSecretRef": {"name": "keys"}},
                engine={"env": [{"name": name, "value": "x"}]},
            ),
        )
        for uri, name in ((S3, "AWS_SECRET_ACCESS_KEY"), ("oss://models/q", "OSS_ACCESS_KEY_ID"), (OCI, "OCI_USERNAME"))
    ),
    Example("spec.model.credentialsSecretRef", "qwen", spec_of(HUB, model={"credentialsSecretRef": {"name": "keys"}})),
    Example("spec.model.credentialsSecretRef", "qwen", spec_of(model={"credentialsSecretRef": {"name": "keys"}})),
    Example("spec.model.tokenSecretRef", "qwen", spec_of(S3, model={"tokenSecretRef": {"name": "hf"}})),
    Example("spec.model.revision", "qwen", spec_of(OCI, model={"revision": "v1"})),
    Example("", "qwen", spec_of(HUB, model={"cache": {"size": "20Gi", "accessModes": ["ReadWriteMany"]}})),
    Example("", "qwen", spec_of(HUB, model={"cache": {"claimName": "models", "accessModes": []}})),
    Example(
        "",
        "qwen",
        spec_of(
            HUB,
            model={"cache": {"size": 1, "accessModes": ["ReadWriteOncePod"]}},
            rollout={"maxSurge": 0, "maxUnavailable": 1},
        ),
    ),
    Example(
        "spec.model.cache.accessModes",
        "qwen",
        spec_of(HUB, model={"cache": {"size": 1, "accessModes": ["ReadWriteOncePod"]}}),
    ),
    Example(
        "spec.model.cache.accessModes",
        "qwen",
        spec_of(
            HUB,
            model={"cache": {"size": 1, "accessModes": ["ReadWriteOncePod"]}},
            rollout={"maxSurge": 0, "maxUnavailable": 1},
            replicas=2,
        ),
    ),
    Example(
        "spec.model.cache.accessModes",
        "qwen",
        spec_of(
            HUB,
            model={"cache": {"size": 1, "accessModes": ["ReadWriteOncePod", "ReadWriteMany"]}},
            rollout={"maxSurge": 0, "maxUnavailable": 1},
        ),
    ),
    Example("spec.model.cache.size", "qwen", spec_of(HUB, model={"cache": {"claimName": "models", "size": 1}})),
    Example("spec.model.cache.storageClassName", "qwen", spec_of(HUB, model={"cache": {"storageClassName": "fast"}})),
    Example(
        "spec.model.cache.storageClassName",
        "qwen",
        spec_of(HUB, model={"cache": {"claimName": "models", "accessModes": ["ReadWriteOnce"]}}),
    ),
    Example("", "qwen", spec_of("pvc://models/qwen/v1", engine={"gpus": {"count": 1, "resource": "amd.com/gpu"}})),
    Example("spec.model.cache", "qwen", spec_of("pvc://models", model={"cache": {"claimName": "models"}})),
    Example("spec.model.revision", "qwen", spec_of("pvc://models", model={"revision": "main"})),
    *(
        Example("", "qwen", _gpus(**gpus))
        for gpus in (
            {"count": 8},
            {"count": 8, "tensorParallel": 8, "pipelineParallel": 1, "nodes": 1},
            {"count": 0, "tensorParallel": 64},
            {"tensorParallel": 3},
            {"count": 8, "pipelineParallel": 2},
            {"count": 8, "tensorParallel": 4, "pipelineParallel": 2, "nodes": 2},
            {"count": 2, "nodes": 2},
            {"pipelineParallel": 3, "nodes": 3},
            {"tensorParallel": 2, "nodes": 2},
            {"tensorParallel": 2, "pipelineParallel": 2, "nodes": 4},
            {"tensorParallel": 2, "expertParallel": True},
            {"count": 4, "pipelineParallel": 2, "expertParallel": True},
            {"count": 1, "expertParallel": False},
        )
    ),
    *(
        Example("spec.engine.gpus.expertParallel", "qwen", _gpus(expertParallel=True, **gpus))
        for gpus in ({}, {"count": 1}, {"tensorParallel": 1}, {"count": 2, "pipelineParallel": 2})
    ),
    *(
        Example("spec.engine.gpus.tensorParallel", "qwen", _gpus(**gpus))
        for gpus in (
            {"count": 1, "tensorParallel": 2},
            {"count": 4, "tensorParallel": 1},
            {"count": 4, "tensorParallel": 2},
            {"count": 4, "tensorParallel": 2, "pipelineParallel": 3},
            {"count": 4, "pipelineParallel": 3},
            {"count": 1, "pipelineParallel": 2},
        )
    ),
    *(
        Example("spec.engine.gpus.nodes", "qwen", _gpus(**gpus))
        for gpus in (
            {"count": 1, "nodes": 2},
            {"count": 4, "tensorParallel": 4, "nodes": 3},
            {"count": 4, "pipelineParallel": 2, "nodes": 8},
            {"nodes": 2},
            {"tensorParallel": 3, "nodes": 2},
            {"tensorParallel": 2, "pipelineParallel": 2, "nodes": 3},
        )
    ),
    *(
        Example(
            "spec.engine.gpus.pipelineParallel", "qwen", spec_of(engine={"gpus": {"pipelineParallel": 2}, **feature})
        )
        for feature in (
            {"speculative": {"method": "mtp"}},
            {"speculative": {"method": "eagle3", **draft(FILE)}},
        )
    ),
    *(
        Example("", "qwen", spec_of(engine={"gpus": {"pipelineParallel": 2}, "speculative": speculative}))
        for speculative in ({"method": "ngram"}, {"method": "lookahead"}, {"method": "draft", **draft(FILE)})
    ),
    Example("", "qwen", spec_of(engine={"gpus": {"pipelineParallel": 2}, "lora": {}})),
    Example("", "qwen", spec_of(engine={"gpus": {"tensorParallel": 2, "nodes": 2}, "lora": {}})),
    Example("", "qwen", spec_of(engine={"gpus": {"tensorParallel": 2, "nodes": 2, "topologyKey": "rack"}})),
    Example("spec.engine.gpus.topologyKey", "qwen", spec_of(engine={"gpus": {"count": 2, "topologyKey": "rack"}})),
    Example("", "qwen", spec_of(engine={"gpus": {"count": 2, "customAllReduce": True}})),
    Example("", "qwen", spec_of(engine={"gpus": {"tensorParallel": 2, "customAllReduce": False}})),
    Example(
        "spec.engine.gpus.customAllReduce",
        "qwen",
        spec_of(engine={"gpus": {"tensorParallel": 2, "customAllReduce": True}}),
    ),
    Example("", "qwen", spec_of(engine={"gpus": {"tensorParallel": 1}, "shmSize": "64Mi"})),
    Example("", "qwen", spec_of(engine={"gpus": {"count": 2}, "shmSize": 1 << 30})),
    Example("spec.engine.shmSize", "qwen", spec_of(engine={"gpus": {"count": 2}, "shmSize": "1023Mi"})),
    Example("spec.engine.shmSize", "qwen", spec_of(engine={"gpus": {"tensorParallel": 2}, "shmSize": "1G"})),
    Example("", "qwen", spec_of(engine={"gpus": {"count": 2, "pipelineParallel": 2}, "shmSize": "64Mi"})),
    Example("", "qwen", spec_of(engine={"gpus": {"count": 2}, "lora": {}})),
    Example("", "qwen", spec_of(engine={"gpus": {"tensorParallel": 2}, "speculative": {"method": "mtp"}})),
    Example("", "qwen", spec_of(engine={"gpus": {"tensorParallel": 2}, "speculative": {"method": "ngram"}})),
    Example("", "qwen", spec_of(engine={"gpus": {"count": 1}, "memoryFraction": "0.85"})),
    Example("spec.engine.memoryFraction", "qwen", spec_of(engine={"memoryFraction": "0.85"})),
    Example("", "qwen", spec_of(engine={"gpus": {"count": 1}, "cudaGraphs": {"batchSizes": [1, 2, 32]}})),
    Example("spec.engine.cudaGraphs", "qwen", spec_of(engine={"cudaGraphs": {"enabled": False}})),
    Example(
        "spec.engine.cudaGraphs.batchSizes",
        "qwen",
        spec_of(engine={"gpus": {"count": 1}, "cudaGraphs": {"batchSizes": [1, 4, 2]}}),
    ),
    Example(
        "", "qwen", spec_of(engine={"gpus": {"count": 1}, "cudaGraphs": {"tokenSizes": [64, 256], "maxTokens": 0}})
    ),
    Example(
        "spec.engine.cudaGraphs.tokenSizes",
        "qwen",
        spec_of(engine={"gpus": {"count": 1}, "cudaGraphs": {"tokenSizes": [256, 64]}}),
    ),
    Example("", "qwen", spec_of(engine={"podTemplate": _labels({"team": "a", "example.org/x": ""})})),
    Example("", "qwen", spec_of(engine={"podTemplate": {"spec": {"nodeSelector": {"disk": "ssd"}}}})),
    Example("spec.engine.podTemplate.metadata.labels", "qwen", spec_of(engine={"podTemplate": _labels({OWN: "x"})})),
    Example("spec.router.podTemplate.metadata.labels", "qwen", spec_of(router={"podTemplate": _labels({OWN: "x"})})),
    Example(
        "spec.engine.podTemplate.metadata.annotations", "qwen", spec_of(engine={"podTemplate": _annotations(TEMPLATE)})
    ),
    Example(
        "spec.router.podTemplate.metadata.annotations", "qwen", spec_of(router={"podTemplate": _annotations(TEMPLATE)})
    ),
    Example("", "qwen", spec_of(engine={"podTemplate": _annotations("example.com/chat-template")})),
    Example("", "qwen", spec_of(engine={"extraArgs": ["--models_are_fun", "--disable_prompt_cache", "model"]})),
    Example("spec.engine.extraArgs", "qwen", spec_of(engine={"extraArgs": ["--model", "/x"]})),
    Example("spec.engine.extraArgs", "qwen", spec_of(engine={"extraArgs": ["--port=1"]})),
    Example("spec.engine.extraArgs", "qwen", spec_of(engine={"extraArgs": ["--log_level=DEBUG", "--max-model-len=9"]})),
    Example("spec.engine.extraArgs", "qwen", spec_of(engine={"extraArgs": ["--tool-call-parser", "hermes"]})),
    Example("spec.engine.extraArgs", "qwen", spec_of(engine={"extraArgs": ["--task=embed"]})),
    *(
        Example("spec.engine.extraArgs", "qwen", spec_of(engine={"extraArgs": [argument]}))
        for argument in ("--encoder-cache-bytes=1GiB", "--no-with-visual", "--max_images_per_request=2")
    ),
    Example("", "qwen", spec_of(engine={"extraArgs": ["-t", "-tps", "--pp"]})),
    *(
        Example("spec.engine.extraArgs", "qwen", spec_of(engine={"extraArgs": [*arguments]}))
        for arguments in (["-tp", "2"], ["-pp=2"], ["--tensor-parallel-size=2"], ["--nnodes", "2"])
    ),
    Example("", "qwen", spec_of(engine={"chatTemplate": {"inline": "x"}, "toolCallParser": "hermes"})),
    Example("", "qwen", spec_of(engine={"chatTemplate": {"configMapKeyRef": {"name": "x"}}, "task": "embed"})),
    Example("spec.engine.chatTemplate", "qwen", spec_of(engine={"chatTemplate": {}})),
    Example(
        "spec.engine.chatTemplate",
        "qwen",
        spec_of(engine={"chatTemplate": {"inline": "x", "configMapKeyRef": {"name": "x"}}}),
    ),
    Example("", "qwen", spec_of(engine={"task": "embed", "pooling": "mean", "apiServers": 2, "jsonWarmup": False})),
    Example("", "qwen", spec_of(engine={"task": "score", "apiServers": 2})),
    Example("", "qwen", spec_of(pricing={"currency": "EUR", "perEngineHour": "2.50"})),
    Example("", "qwen", spec_of(pricing={"currency": "USD", "perGpuHour": "3"}, engine={"gpus": {"count": 2}})),
    Example("spec.pricing", "qwen", spec_of(pricing={"currency": "EUR"})),
    Example(
        "spec.pricing",
        "qwen",
        spec_of(pricing={"currency": "EUR", "perEngineHour": "1", "perGpuHour": "1"}, engine={"gpus": {"count": 1}}),
    ),
    Example("spec.pricing.perGpuHour", "qwen", spec_of(pricing={"currency": "EUR", "perGpuHour": "1"})),
    Example("", "qwen", spec_of(engine={"task": "embed", "preset": "throughput"})),
    Example("spec.engine.preset", "qwen", spec_of(engine={"task": "embed", "preset": "chat"})),
    Example("spec.engine.extraArgs", "qwen", spec_of(engine={"extraArgs": ["--preset=chat"]})),
    Example("spec.engine.toolCallParser", "qwen", spec_of(engine={"task": "score", "toolCallParser": "none"})),
    Example("spec.engine.toolCallParser", "qwen", spec_of(engine={"task": "embed", "toolCallParser": "none"})),
    Example("spec.engine.reasoningParser", "qwen", spec_of(engine={"task": "embed", "reasoningParser": "qwen3"})),
    Example("spec.engine.jsonWarmup", "qwen", spec_of(engine={"task": "embed", "jsonWarmup": True})),
    Example("", "qwen", spec_of(engine={"env": [{"name": "MY_BLADE_X", "value": "1"}]})),
    Example("spec.engine.env", "qwen", spec_of(engine={"env": [{"name": "BLADE_HOST", "value": "::"}]})),
    Example("", "qwen", spec_of(router={"auth": {"keysSecret": {"name": "k"}}, "tls": {"secretName": "t"}})),
    Example("", "qwen", spec_of(router={"limits": {"concurrent": 1}})),
    Example(
        "spec.router.limits",
        "qwen",
        spec_of(router={"auth": {"keysSecret": {"name": "k"}}, "limits": {"concurrent": 1}}),
    ),
    Example("", "qwen", spec_of(router=_models({"name": "qwen", "aliases": ["a", "b"]}))),
    Example("", "qwen", spec_of(model=SERVED, router=_models({"name": "x", "aliases": ["qwen"]}, {"name": "y"}))),
    Example("spec.router.models", "qwen", spec_of(router=_models({"name": "x"}))),
    Example("spec.router.models", "qwen", spec_of(model=SERVED, router=_models({"name": "qwen"}))),
    Example("spec.router.models", "qwen", spec_of(router=_models({"name": "qwen", "aliases": ["qwen"]}))),
    Example("spec.router.models", "qwen", spec_of(model=SERVED, router=_models({"name": "x", "aliases": ["y"]}))),
    Example(
        "spec.router.models",
        "qwen",
        spec_of(model=SERVED, router=_models({"name": "x", "aliases": ["a"]}, {"name": "y", "aliases": ["b", "a"]})),
    ),
    Example("", "qwen", spec_of(router={"queue": {"endpointRequests": 8, "maxAge": "1h"}, "slowStart": "1s"})),
    Example("", "qwen", spec_of(router={"slowStart": "0s"})),
    Example("spec.router.queue.maxAge", "qwen", spec_of(router={"queue": {"endpointRequests": 8, "maxAge": "0s"}})),
    Example("spec.router.hold.maxAge", "qwen", spec_of(router={"hold": {"maxAge": "1h1s"}})),
    Example("", "qwen", spec_of(router={"hold": {"maxRequests": 0}})),
    Example("", "qwen", spec_of(scaling=IDLE_TO_ZERO, router={"hold": {"maxRequests": 1}})),
    Example("spec.router.hold.maxRequests", "qwen", spec_of(scaling=IDLE_TO_ZERO, router={"hold": {"maxRequests": 0}})),
    Example("", "qwen", spec_of(router={"retry": {"firstByteTimeout": "0s", "stallTimeout": "0s"}})),
    Example("spec.router.retry.firstByteTimeout", "qwen", spec_of(router={"retry": {"firstByteTimeout": "61m"}})),
    Example("spec.router.retry.stallTimeout", "qwen", spec_of(router={"retry": {"stallTimeout": "61m"}})),
    Example("spec.router.slowStart", "qwen", spec_of(router={"slowStart": "61m"})),
    Example("", "qwen", spec_of(router={"streamCommentInterval": "0s"})),
    Example("spec.router.streamCommentInterval", "qwen", spec_of(router={"streamCommentInterval": "61m"})),
    *(Example("", "qwen", spec_of(router={"maxBodyBytes": size})) for size in ("1Mi", 1 << 20, "40M", "64Mi", 1 << 26)),
    *(
        Example("spec.router.maxBodyBytes", "qwen", spec_of(router={"maxBodyBytes": size}))
        for size in ("1023Ki", "1M", 1, "65Mi", (1 << 26) + 1, "1Gi")
    ),
    *(Example("", "qwen", spec_of(router={"maxPartBytes": size})) for size in ("1Mi", 1 << 20, "1100k", "8Gi")),
    *(
        Example("spec.router.maxPartBytes", "qwen", spec_of(router={"maxPartBytes": size}))
        for size in ("1023Ki", "1M", (1 << 20) - 1, 1)
    ),
    Example("", "qwen", spec_of(rollout={"maxSurge": 0, "maxUnavailable": 1})),
    Example("spec.rollout", "qwen", spec_of(rollout={"maxSurge": 0})),
    Example("", "qwen", spec_of(rollout={"drainTimeout": "24h"})),
    Example("spec.rollout.drainTimeout", "qwen", spec_of(rollout={"drainTimeout": "23h61m"})),
    *(Example(breaks, "qwen", spec_of(scaling=scaling)) for breaks, scaling in SCALING),
    Example("", "qwen", spec_of(rollout={"canary": {"shadow": {}}})),
    Example(
        "", "qwen", spec_of(rollout={"canary": {"steps": [1, 10, 99], "shadow": {"share": 100}}, "maxUnavailable": 1})
    ),
    Example("spec.rollout.canary", "qwen", spec_of(rollout={"canary": {}, "maxSurge": 0, "maxUnavailable": 1})),
)
