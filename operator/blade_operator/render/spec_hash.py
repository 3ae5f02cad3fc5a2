"""The hash of a spec: of what its user set, the same whatever release of the operator computes it.

An API server stores defaults with the rest, so what a user left alone looks like what they set to the default.
A field at the default it was born with does not count. Should a later release give it another default, specs that were
stored before keep the old value, and their hash; and a field that a release adds changes the hash of no stored spec.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

from blade_operator.model.objects import Object
from blade_operator.render.meta import digest
from blade_operator.render.storage import one_machine
from blade_operator.spec.parse import LLMService
from blade_operator.spec.quantity import parse_bytes
from blade_protocol.labels import RESTARTED_AT

BORN_WITH: Final[dict[str, dict[str, Any]]] = {
    "LLMServiceSpec": {"engine": {}, "check": {}, "tracing": None, "logFormat": None},
    "Model": {
        "revision": None,
        "servedNames": [],
        "cache": None,
        "tokenSecretRef": None,
        "credentialsSecretRef": None,
        "quantization": None,
    },
    "Quantization": {"method": None, "bits": None, "kvCache": "no_quant"},
    "ModelCache": {"claimName": None, "size": None, "storageClassName": None, "accessModes": []},
    "SecretKeyRef": {"key": "token"},
    "Engine": {
        "image": "",
        "preset": None,
        "dtype": "auto",
        "contextLength": None,
        "maxNumSeqs": None,
        "maxWaitingRequests": None,
        "kvCacheBytes": None,
        "memoryFraction": None,
        "vision": None,
        "cudaGraphs": None,
        "modelImpl": "auto",
        "quant": "none",
        "enableTritonMla": False,
        "deterministic": False,
        "task": "generate",
        "pooling": None,
        "chatTemplate": None,
        "toolCallParser": None,
        "reasoningParser": None,
        "jsonWarmup": False,
        "apiServers": 1,
        "extraArgs": [],
        "env": [],
        "resources": None,
        "gpus": {},
        "shmSize": "1Gi",
        "podTemplate": None,
        "speculative": None,
        "lora": None,
    },
    "Lora": {"maxGPU": 8, "maxCPU": None, "maxRank": 16, "dtype": "auto"},
    "Speculative": {"draftModel": None, "steps": 4, "disableAboveBatch": None, "ngram": None, "lookahead": None},
    "DraftModel": {"revision": None},
    "Ngram": {"minMatch": 2},
    "Lookahead": {"windowSize": 7, "gramSize": 3, "guessSetSize": 5},
    "Vision": {"enabled": True, "maxImagesPerRequest": None, "encoderCacheBytes": None},
    "CudaGraphs": {
        "enabled": True,
        "batchSizes": [],
        "maxBatchSize": None,
        "tokenSizes": [],
        "maxTokens": None,
    },
    "ChatTemplate": {"inline": None, "configMapKeyRef": None},
    "ConfigMapKeyRef": {"key": "chat_template.jinja"},
    "EnvVar": {"value": ""},
    "Resources": {"requests": None, "limits": None},
    "ResourceList": {"cpu": None, "memory": None},
    "Gpus": {
        "count": 0,
        "resource": "nvidia.com/gpu",
        "tensorParallel": None,
        "expertParallel": False,
        "pipelineParallel": 1,
        "nodes": 1,
        "topologyKey": None,
        "customAllReduce": False,
    },
    "PodTemplate": {"metadata": None, "spec": {}},
    "PodMetadata": {"labels": {}, "annotations": {}},
    "Tracing": {"samplingRatio": "1"},
    "Check": {"mode": "Enforce", "items": ["shm", "pbEnv", "flopsDiff", "memoryFit", "modelFiles"]},
}
"""By model and field: the default in the first release that had the field. An entry is never changed, only added."""
_PARTS: Final = ("model", "engine", "check")
"""The parts of a spec that shape engine pods."""
_FURTHER: Final = ("tracing", "logFormat")
"""Further fields of it that do, and routers' pods, too."""


def spec_hash(service: LLMService, claim: Object | None = None) -> str:
    """Hash of the fields in the spec that shape engine pods; ``claim``: the operator's own of the cache, if there."""
    whole = _set_fields(service.spec)
    relevant: dict[str, Any] = {part: whole[part] for part in _PARTS if part in whole}
    if "cache" in relevant["model"] and "claimName" not in relevant["model"]["cache"]:
        relevant["model"]["cache"] = _cache_fields(service, claim)
    if (engine_token := service.spec.security.engine_token) is not None:
        relevant["engineToken"] = engine_token
    if (body := service.spec.router.max_body_bytes) is not None:
        relevant["maxBodyBytes"] = parse_bytes(body)
    relevant |= {field: whole[field] for field in _FURTHER if field in whole}
    relevant["drainTimeout"] = service.spec.rollout.drain_timeout
    relevant["restartedAt"] = service.annotations.get(RESTARTED_AT, "")
    return digest(relevant)


def _cache_fields(service: LLMService, claim: Object | None) -> Any:
    """The part of a claim that shapes the pods: that the operator creates one, and if engines share a machine."""
    cache = service.spec.model.cache
    return {"own": cache is not None and cache.size is not None, "oneMachine": one_machine(service, claim)}


def _set_fields(record: BaseModel) -> dict[str, Any]:
    """The fields of ``record`` that are not as they were born, as JSON."""
    born, fields = BORN_WITH.get(type(record).__name__, {}), {}
    for name, info in type(record).model_fields.items():
        key, value = info.alias or name, _as_json(getattr(record, name))
        if key not in born or value != born[key]:
            fields[key] = value
    return fields


def _as_json(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _set_fields(value)
    return [_as_json(item) for item in value] if isinstance(value, list | tuple) else value
