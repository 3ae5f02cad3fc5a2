"""For each cross-field rule: specs that keep it and specs that break it. An API server must decide as we do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blade_operator.spec.rules.rule import Rule
from operator_support.rule_examples_scaling import IDLE_TO_ZERO, SCALING

HUB = "hf://Qwen/Qwen3-8B"
FILE = "file:///m"
MODELSCOPE = "modelscope://Qwen/Qwen3-8B"
S3 = "s3://models/qwen/v1"
OCI = "oci://registry.team:5000/acme/qwen:v1"
OWN = "serving.bladellm.io/name"
TEMPLATE = "serving.bladellm.io/chat-template"


@dataclass(frozen=True)
class Example:
    """A service by name and spec; ``breaks`` is the field of the one rule it breaks, empty when it keeps all. Where
    several rules are of that field, ``says`` is a part of the message."""

    breaks: str
    name: str
    spec: dict[str, Any]
    says: str = ""

    def is_of(self, rule: Rule) -> bool:
        """Whether it breaks this rule."""
        return rule.field == self.breaks and self.says in rule.message


def _spec(uri: str = FILE, **spec: Any) -> dict[str, Any]:
    model = {"uri": uri, **spec.pop("model", {})}
    return {"model": model, **spec}


def _labels(labels: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"labels": labels}}


def _annotations(name: str) -> dict[str, Any]:
    return {"metadata": {"annotations": {name: "x"}}}


SERVED = {"servedNames": ["x", "y"]}


def _models(*models: dict[str, Any]) -> dict[str, Any]:
    return {"models": list(models)}


def _gpus(**gpus: int) -> dict[str, Any]:
    return _spec(engine={"gpus": gpus})


def _quantized(engine: dict[str, Any], **quantization: Any) -> dict[str, Any]:
    return _spec(model={"quantization": quantization}, engine=engine)


def _speculative(uri: str = FILE, **speculative: Any) -> dict[str, Any]:
    return _spec(uri, engine={"speculative": {"method": "draft", **speculative}})


def _adapters(*adapters: dict[str, Any], uri: str = FILE, **spec: Any) -> dict[str, Any]:
    return _spec(uri, engine={"lora": {}}, adapters=list(adapters), **spec)


def _selecting(*requirements: dict[str, Any]) -> dict[str, Any]:
    return _adapters(adapterSelector={"matchExpressions": [{"key": "team", **each} for each in requirements]})


def _lookahead(**sizes: int) -> dict[str, Any]:
    return _speculative(method="lookahead", lookahead=sizes)


def _draft(uri: str, **draft: Any) -> dict[str, Any]:
    return {"draftModel": {"uri": uri, **draft}}


V1 = {"name": "sql-v1", "uri": FILE, "model": "sql"}
V2 = {"name": "sql-v2", "uri": FILE, "model": "sql", "weight": 10}

EXAMPLES: tuple[Example, ...] = (
    Example("", "qwen", _adapters({"name": "sql", "uri": FILE}, {"name": "x", "uri": FILE, "replicas": 2})),
    Example("", "qwen", _adapters({"name": "sql", "uri": "hf://a/b"}, uri=HUB)),
    Example("", "qwen", _spec(engine={"lora": {"maxGPU": 4, "maxCPU": 4}})),
    Example("spec.engine.lora.maxCPU", "qwen", _spec(engine={"lora": {"maxGPU": 4, "maxCPU": 3}})),
    Example("spec.engine.lora", "qwen", _spec(adapters=[{"name": "sql", "uri": FILE}]), "spec.adapters"),
    Example("spec.engine.lora", "qwen", _spec(adapterSelector={}), "spec.adapterSelector"),
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
    Example("", "qwen", _speculative(method="ngram", ngram={"minMatch": 3}, steps=8, disableAboveBatch=4)),
    Example("", "qwen", _speculative(method="lookahead")),
    Example(
        "", "qwen", _speculative(method="lookahead", lookahead={"windowSize": 15, "gramSize": 5, "guessSetSize": 15})
    ),
    Example("", "qwen", _speculative(method="lookahead", lookahead={"windowSize": 59})),
    Example(
        "spec.engine.speculative.lookahead",
        "qwen",
        _speculative(method="lookahead", lookahead={"windowSize": 60}),
        "128",
    ),
    Example(
        "spec.engine.speculative.lookahead",
        "qwen",
        _speculative(method="ngram", lookahead={}),
        "is of method lookahead",
    ),
    Example("", "qwen", _speculative(**_draft(FILE))),
    Example("", "qwen", _speculative(HUB, **_draft("hf://Qwen/Qwen3-0.6B", revision="main"))),
    Example("", "qwen", _speculative(HUB, **_draft(FILE))),
    Example("", "qwen", _speculative("pvc://store/a", **_draft("pvc://store/b"))),
    Example("", "qwen", _speculative(method="eagle3", steps=3, **_draft(FILE))),
    Example("", "qwen", _speculative(HUB, method="eagle3", **_draft("hf://org/head", revision="main"))),
    Example("", "qwen", _speculative(method="mtp", steps=1)),
    Example(
        "spec.engine.speculative.draftModel", "qwen", _speculative(method="eagle3"), "eagle3 (a draft head) need it"
    ),
    Example("spec.engine.speculative.draftModel", "qwen", _speculative(method="mtp", **_draft(FILE)), "no other"),
    Example("spec.engine.speculative.draftModel", "qwen", _speculative(method="lookahead", **_draft(FILE))),
    Example("spec.engine.speculative.ngram", "qwen", _speculative(method="eagle3", ngram={}, **_draft(FILE))),
    Example("spec.engine.speculative.lookahead", "qwen", _speculative(method="mtp", lookahead={}), "is of method"),
    Example("spec.engine.speculative.draftModel", "qwen", _speculative()),
    Example("spec.engine.speculative.draftModel", "qwen", _speculative(method="ngram", **_draft(FILE))),
    Example("spec.engine.speculative.ngram", "qwen", _speculative(ngram={}, **_draft(FILE))),
    Example("spec.engine.speculative.draftModel.revision", "qwen", _speculative(**_draft(FILE, revision="x"))),
    Example("spec.engine.speculative.draftModel.uri", "qwen", _speculative(**_draft(HUB))),
    Example("spec.engine.speculative.draftModel.uri", "qwen", _speculative(HUB, **_draft(MODELSCOPE))),
    Example("spec.engine.speculative.draftModel.uri", "qwen", _speculative("pvc://a/x", **_draft("pvc://b/x"))),
    Example("spec.engine.speculative.draftModel.uri", "qwen", _speculative("pvc://a/x", **_draft(HUB))),
    Example(
        "spec.engine.speculative",
        "qwen",
        _spec(engine={"task": "embed", "speculative": {"method": "ngram"}}),
    ),
    Example("spec.engine.extraArgs", "qwen", _spec(engine={"extraArgs": ["--draft.model", "x"]})),
    Example("spec.engine.extraArgs", "qwen", _spec(engine={"extraArgs": ["--decode-algo=ngram"]})),
    Example("", "a", _spec()),
    Example("", "a-" + "b" * 38, _spec()),
    Example("metadata.name", "a-" + "b" * 39, _spec()),
    Example("metadata.name", "1qwen", _spec()),
    Example("metadata.name", "qwen.3", _spec()),
    Example("", "qwen-3", _spec(HUB, model={"revision": "main", "cache": {"claimName": "models"}})),
    Example("spec.model.revision", "qwen", _spec(model={"revision": "main"})),
    Example("spec.model.cache", "qwen", _spec(model={"cache": {}})),
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
    Example("metadata.name", "qwen-", _spec()),
    Example("", "qwen", _spec(HUB, model={"tokenSecretRef": {"name": "hf"}, "cache": {}})),
    Example("spec.model.tokenSecretRef", "qwen", _spec(model={"tokenSecretRef": {"name": "hf"}})),
    Example(
        "spec.model.tokenSecretRef.name",
        "qwen",
        _spec(HUB, model={"tokenSecretRef": {"name": "hf"}}, engine={"env": [{"name": "HF_TOKEN", "value": "x"}]}),
    ),
    Example(
        "",
        "qwen",
        _spec(
            MODELSCOPE,
            model={"tokenSecretRef": {"name": "ms"}, "revision": "master", "cache": {"size": 1}},
            engine={"env": [{"name": "HF_TOKEN", "value": "x"}]},
        ),
    ),
    Example(
        "spec.model.tokenSecretRef.name",
        "qwen",
        _spec(
            MODELSCOPE,
            model={"tokenSecretRef": {"name": "ms"}},
            engine={"env": [{"name": "MODELSCOPE_API_TOKEN", "value": "x"}]},
        ),
    ),
    *(
        Example("", "qwen", _spec(uri, model={"credentialsSecretRef": {"name": "keys"}, "cache": {"claimName": "m"}}))
        for uri in (S3, "oss://models/qwen", OCI)
    ),
    Example(
        "",
        "qwen",
        _spec(
            S3,
            model={"credentialsSecretRef": {"name": "keys"}},
            engine={"env": [{"name": "AWS_ENDPOINT_URL_S3", "value": "http://minio:9000"}]},
        ),
    ),
    *(
        Example(
            "spec.model.credentialsSecretRef.name",
            "qwen",
            _spec(
                uri,
                model={"credentialsSecretRef": {"name": "keys"}},
                engine={"env": [{"name": name, "value": "x"}]},
            ),
        )
        for uri, name in ((S3, "AWS_SECRET_ACCESS_KEY"), ("oss://models/q", "OSS_ACCESS_KEY_ID"), (OCI, "OCI_USERNAME"))
    ),
    Example("spec.model.credentialsSecretRef", "qwen", _spec(HUB, model={"credentialsSecretRef": {"name": "keys"}})),
    Example("spec.model.credentialsSecretRef", "qwen", _spec(model={"credentialsSecretRef": {"name": "keys"}})),
    Example("spec.model.tokenSecretRef", "qwen", _spec(S3, model={"tokenSecretRef": {"name": "hf"}})),
    Example("spec.model.revision", "qwen", _spec(OCI, model={"revision": "v1"})),
    Example("", "qwen", _spec(HUB, model={"cache": {"size": "20Gi", "accessModes": ["ReadWriteMany"]}})),
    Example("", "qwen", _spec(HUB, model={"cache": {"claimName": "models", "accessModes": []}})),
    Example(
        "",
        "qwen",
        _spec(
            HUB,
            model={"cache": {"size": 1, "accessModes": ["ReadWriteOncePod"]}},
            rollout={"maxSurge": 0, "maxUnavailable": 1},
        ),
    ),
    Example(
        "spec.model.cache.accessModes",
        "qwen",
        _spec(HUB, model={"cache": {"size": 1, "accessModes": ["ReadWriteOncePod"]}}),
    ),
    Example(
        "spec.model.cache.accessModes",
        "qwen",
        _spec(
            HUB,
            model={"cache": {"size": 1, "accessModes": ["ReadWriteOncePod"]}},
            rollout={"maxSurge": 0, "maxUnavailable": 1},
            replicas=2,
        ),
    ),
    Example(
        "spec.model.cache.accessModes",
        "qwen",
        _spec(
            HUB,
            model={"cache": {"size": 1, "accessModes": ["ReadWriteOncePod", "ReadWriteMany"]}},
            rollout={"maxSurge": 0, "maxUnavailable": 1},
        ),
    ),
    Example("spec.model.cache.size", "qwen", _spec(HUB, model={"cache": {"claimName": "models", "size": 1}})),
    Example("spec.model.cache.storageClassName", "qwen", _spec(HUB, model={"cache": {"storageClassName": "fast"}})),
    Example(
        "spec.model.cache.storageClassName",
        "qwen",
        _spec(HUB, model={"cache": {"claimName": "models", "accessModes": ["ReadWriteOnce"]}}),
    ),
    Example("", "qwen", _spec("pvc://models/qwen/v1", engine={"gpus": {"count": 1, "resource": "amd.com/gpu"}})),
    Example("spec.model.cache", "qwen", _spec("pvc://models", model={"cache": {"claimName": "models"}})),
    Example("spec.model.revision", "qwen", _spec("pvc://models", model={"revision": "main"})),
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
        Example("spec.engine.gpus.pipelineParallel", "qwen", _spec(engine={"gpus": {"pipelineParallel": 2}, **feature}))
        for feature in (
            {"speculative": {"method": "mtp"}},
            {"speculative": {"method": "eagle3", **_draft(FILE)}},
        )
    ),
    *(
        Example("", "qwen", _spec(engine={"gpus": {"pipelineParallel": 2}, "speculative": speculative}))
        for speculative in ({"method": "ngram"}, {"method": "lookahead"}, {"method": "draft", **_draft(FILE)})
    ),
    Example("", "qwen", _spec(engine={"gpus": {"pipelineParallel": 2}, "lora": {}})),
    Example("", "qwen", _spec(engine={"gpus": {"tensorParallel": 2, "nodes": 2}, "lora": {}})),
    Example("", "qwen", _spec(engine={"gpus": {"tensorParallel": 2, "nodes": 2, "topologyKey": "rack"}})),
    Example("spec.engine.gpus.topologyKey", "qwen", _spec(engine={"gpus": {"count": 2, "topologyKey": "rack"}})),
    Example("", "qwen", _spec(engine={"gpus": {"count": 2, "customAllReduce": True}})),
    Example("", "qwen", _spec(engine={"gpus": {"tensorParallel": 2, "customAllReduce": False}})),
    Example(
        "spec.engine.gpus.customAllReduce",
        "qwen",
        _spec(engine={"gpus": {"tensorParallel": 2, "customAllReduce": True}}),
    ),
    Example("", "qwen", _spec(engine={"gpus": {"tensorParallel": 1}, "shmSize": "64Mi"})),
    Example("", "qwen", _spec(engine={"gpus": {"count": 2}, "shmSize": 1 << 30})),
    Example("spec.engine.shmSize", "qwen", _spec(engine={"gpus": {"count": 2}, "shmSize": "1023Mi"})),
    Example("spec.engine.shmSize", "qwen", _spec(engine={"gpus": {"tensorParallel": 2}, "shmSize": "1G"})),
    Example("", "qwen", _spec(engine={"gpus": {"count": 2, "pipelineParallel": 2}, "shmSize": "64Mi"})),
    Example("", "qwen", _spec(engine={"gpus": {"count": 2}, "lora": {}})),
    Example("", "qwen", _spec(engine={"gpus": {"tensorParallel": 2}, "speculative": {"method": "mtp"}})),
    Example("", "qwen", _spec(engine={"gpus": {"tensorParallel": 2}, "speculative": {"method": "ngram"}})),
    Example("", "qwen", _spec(engine={"gpus": {"count": 1}, "memoryFraction": "0.85"})),
    Example("spec.engine.memoryFraction", "qwen", _spec(engine={"memoryFraction": "0.85"})),
    Example("", "qwen", _spec(engine={"gpus": {"count": 1}, "cudaGraphs": {"batchSizes": [1, 2, 32]}})),
    Example("spec.engine.cudaGraphs", "qwen", _spec(engine={"cudaGraphs": {"enabled": False}})),
    Example(
        "spec.engine.cudaGraphs.batchSizes",
        "qwen",
        _spec(engine={"gpus": {"count": 1}, "cudaGraphs": {"batchSizes": [1, 4, 2]}}),
    ),
    Example("", "qwen", _spec(engine={"gpus": {"count": 1}, "cudaGraphs": {"tokenSizes": [64, 256], "maxTokens": 0}})),
    Example(
        "spec.engine.cudaGraphs.tokenSizes",
        "qwen",
        _spec(engine={"gpus": {"count": 1}, "cudaGraphs": {"tokenSizes": [256, 64]}}),
    ),
    Example("", "qwen", _spec(engine={"podTemplate": _labels({"team": "a", "example.org/x": ""})})),
    Example("", "qwen", _spec(engine={"podTemplate": {"spec": {"nodeSelector": {"disk": "ssd"}}}})),
    Example("spec.engine.podTemplate.metadata.labels", "qwen", _spec(engine={"podTemplate": _labels({OWN: "x"})})),
    Example("spec.router.podTemplate.metadata.labels", "qwen", _spec(router={"podTemplate": _labels({OWN: "x"})})),
    Example(
        "spec.engine.podTemplate.metadata.annotations", "qwen", _spec(engine={"podTemplate": _annotations(TEMPLATE)})
    ),
    Example(
        "spec.router.podTemplate.metadata.annotations", "qwen", _spec(router={"podTemplate": _annotations(TEMPLATE)})
    ),
    Example("", "qwen", _spec(engine={"podTemplate": _annotations("example.com/chat-template")})),
    Example("", "qwen", _spec(engine={"extraArgs": ["--models_are_fun", "--disable_prompt_cache", "model"]})),
    Example("spec.engine.extraArgs", "qwen", _spec(engine={"extraArgs": ["--model", "/x"]})),
    Example("spec.engine.extraArgs", "qwen", _spec(engine={"extraArgs": ["--port=1"]})),
    Example("spec.engine.extraArgs", "qwen", _spec(engine={"extraArgs": ["--log_level=DEBUG", "--max-model-len=9"]})),
    Example("spec.engine.extraArgs", "qwen", _spec(engine={"extraArgs": ["--tool-call-parser", "hermes"]})),
    Example("spec.engine.extraArgs", "qwen", _spec(engine={"extraArgs": ["--task=embed"]})),
    *(
        Example("spec.engine.extraArgs", "qwen", _spec(engine={"extraArgs": [argument]}))
        for argument in ("--encoder-cache-bytes=1GiB", "--no-with-visual", "--max_images_per_request=2")
    ),
    Example("", "qwen", _spec(engine={"extraArgs": ["-t", "-tps", "--pp"]})),
    *(
        Example("spec.engine.extraArgs", "qwen", _spec(engine={"extraArgs": [*arguments]}))
        for arguments in (["-tp", "2"], ["-pp=2"], ["--tensor-parallel-size=2"], ["--nnodes", "2"])
    ),
    Example("", "qwen", _spec(engine={"chatTemplate": {"inline": "x"}, "toolCallParser": "hermes"})),
    Example("", "qwen", _spec(engine={"chatTemplate": {"configMapKeyRef": {"name": "x"}}, "task": "embed"})),
    Example("spec.engine.chatTemplate", "qwen", _spec(engine={"chatTemplate": {}})),
    Example(
        "spec.engine.chatTemplate",
        "qwen",
        _spec(engine={"chatTemplate": {"inline": "x", "configMapKeyRef": {"name": "x"}}}),
    ),
    Example("", "qwen", _spec(engine={"task": "embed", "pooling": "mean", "apiServers": 2, "jsonWarmup": False})),
    Example("", "qwen", _spec(engine={"task": "score", "apiServers": 2})),
    Example("", "qwen", _spec(pricing={"currency": "EUR", "perEngineHour": "2.50"})),
    Example("", "qwen", _spec(pricing={"currency": "USD", "perGpuHour": "3"}, engine={"gpus": {"count": 2}})),
    Example("spec.pricing", "qwen", _spec(pricing={"currency": "EUR"})),
    Example(
        "spec.pricing",
        "qwen",
        _spec(pricing={"currency": "EUR", "perEngineHour": "1", "perGpuHour": "1"}, engine={"gpus": {"count": 1}}),
    ),
    Example("spec.pricing.perGpuHour", "qwen", _spec(pricing={"currency": "EUR", "perGpuHour": "1"})),
    Example("", "qwen", _spec(engine={"task": "embed", "preset": "throughput"})),
    Example("spec.engine.preset", "qwen", _spec(engine={"task": "embed", "preset": "chat"})),
    Example("spec.engine.extraArgs", "qwen", _spec(engine={"extraArgs": ["--preset=chat"]})),
    Example("spec.engine.toolCallParser", "qwen", _spec(engine={"task": "score", "toolCallParser": "none"})),
    Example("spec.engine.toolCallParser", "qwen", _spec(engine={"task": "embed", "toolCallParser": "none"})),
    Example("spec.engine.reasoningParser", "qwen", _spec(engine={"task": "embed", "reasoningParser": "qwen3"})),
    Example("spec.engine.jsonWarmup", "qwen", _spec(engine={"task": "embed", "jsonWarmup": True})),
    Example("", "qwen", _spec(engine={"env": [{"name": "MY_BLADE_X", "value": "1"}]})),
    Example("spec.engine.env", "qwen", _spec(engine={"env": [{"name": "BLADE_HOST", "value": "::"}]})),
    Example("", "qwen", _spec(router={"auth": {"keysSecret": {"name": "k"}}, "tls": {"secretName": "t"}})),
    Example("", "qwen", _spec(router={"limits": {"concurrent": 1}})),
    Example(
        "spec.router.limits",
        "qwen",
        _spec(router={"auth": {"keysSecret": {"name": "k"}}, "limits": {"concurrent": 1}}),
    ),
    Example("", "qwen", _spec(router=_models({"name": "qwen", "aliases": ["a", "b"]}))),
    Example("", "qwen", _spec(model=SERVED, router=_models({"name": "x", "aliases": ["qwen"]}, {"name": "y"}))),
    Example("spec.router.models", "qwen", _spec(router=_models({"name": "x"}))),
    Example("spec.router.models", "qwen", _spec(model=SERVED, router=_models({"name": "qwen"}))),
    Example("spec.router.models", "qwen", _spec(router=_models({"name": "qwen", "aliases": ["qwen"]}))),
    Example("spec.router.models", "qwen", _spec(model=SERVED, router=_models({"name": "x", "aliases": ["y"]}))),
    Example(
        "spec.router.models",
        "qwen",
        _spec(model=SERVED, router=_models({"name": "x", "aliases": ["a"]}, {"name": "y", "aliases": ["b", "a"]})),
    ),
    Example("", "qwen", _spec(router={"queue": {"endpointRequests": 8, "maxAge": "1h"}, "slowStart": "1s"})),
    Example("", "qwen", _spec(router={"slowStart": "0s"})),
    Example("spec.router.queue.maxAge", "qwen", _spec(router={"queue": {"endpointRequests": 8, "maxAge": "0s"}})),
    Example("spec.router.hold.maxAge", "qwen", _spec(router={"hold": {"maxAge": "1h1s"}})),
    Example("", "qwen", _spec(router={"hold": {"maxRequests": 0}})),
    Example("", "qwen", _spec(scaling=IDLE_TO_ZERO, router={"hold": {"maxRequests": 1}})),
    Example("spec.router.hold.maxRequests", "qwen", _spec(scaling=IDLE_TO_ZERO, router={"hold": {"maxRequests": 0}})),
    Example("", "qwen", _spec(router={"retry": {"firstByteTimeout": "0s", "stallTimeout": "0s"}})),
    Example("spec.router.retry.firstByteTimeout", "qwen", _spec(router={"retry": {"firstByteTimeout": "61m"}})),
    Example("spec.router.retry.stallTimeout", "qwen", _spec(router={"retry": {"stallTimeout": "61m"}})),
    Example("spec.router.slowStart", "qwen", _spec(router={"slowStart": "61m"})),
    Example("", "qwen", _spec(router={"streamCommentInterval": "0s"})),
    Example("spec.router.streamCommentInterval", "qwen", _spec(router={"streamCommentInterval": "61m"})),
    *(Example("", "qwen", _spec(router={"maxPartBytes": size})) for size in ("1Mi", 1 << 20, "1100k", "8Gi")),
    *(
        Example("spec.router.maxPartBytes", "qwen", _spec(router={"maxPartBytes": size}))
        for size in ("1023Ki", "1M", (1 << 20) - 1, 1)
    ),
    Example("", "qwen", _spec(rollout={"maxSurge": 0, "maxUnavailable": 1})),
    Example("spec.rollout", "qwen", _spec(rollout={"maxSurge": 0})),
    Example("", "qwen", _spec(rollout={"drainTimeout": "24h"})),
    Example("spec.rollout.drainTimeout", "qwen", _spec(rollout={"drainTimeout": "23h61m"})),
    *(Example(breaks, "qwen", _spec(scaling=scaling)) for breaks, scaling in SCALING),
    Example("", "qwen", _spec(rollout={"canary": {"shadow": {}}})),
    Example(
        "", "qwen", _spec(rollout={"canary": {"steps": [1, 10, 99], "shadow": {"share": 100}}, "maxUnavailable": 1})
    ),
    Example("spec.rollout.canary", "qwen", _spec(rollout={"canary": {}, "maxSurge": 0, "maxUnavailable": 1})),
)
