"""LLMService objects, pods and events of the scenarios, as the operator reports them to routers."""

from __future__ import annotations

import copy
import time
from typing import Any

Object = dict[str, Any]

STABLE, CANARY = "4ca6cbb5", "5b6c959a"
LAST_LINE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 1.12 GiB is free"
)
_NEEDED = ("SpecValid", "ModelCached", "PreflightPassed", "ModelFits", "WorkersReady", "RouterReady")
_FIT = (
    "bfloat16: weights 16381470720 bytes (15.26 GiB) + activations 1932735283 bytes (1.80 GiB) + KV cache "
    "57982058496 bytes (54.00 GiB) = 76296264499 bytes (71.06 GiB) of 80530636800 bytes (75.00 GiB)"
)


def stamp(when: float) -> str:
    """``when``, in unix seconds, as Kubernetes writes times."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when))


def service(now: float, engines: int = 4, name: str = "qwen") -> Object:
    """The ``service`` of a state: ``engines`` engines of one revision that serve, and two routers."""
    pods = [pod(engine_name(index, name=name), node=f"gpu-{index // 8 + 1:02d}") for index in range(engines)]
    pods += [
        pod(f"{name}-router-6d9f{end}", role="router", revision=None, node="cpu-01") for end in ("8c-x2lq7", "8c-m4c9d")
    ]
    return {
        "reported": now,
        "object": _object(now, engines, name),
        "pods": pods,
        "events": [
            event(now - 3120, "Created", "engine 0 of revision 4ca6cbb5"),
            event(now - 2710, "Ready", f"{engines} of {engines} engines ready"),
            event(now - 1260, "ScaledUp", "3 -> 4: TTFT 812 ms of 500 ms"),
        ],
    }


def engine_name(index: int, revision: str = STABLE, name: str = "qwen") -> str:
    """The name of an engine's pod."""
    return f"{name}-engine-{revision}-{index}"


def pod(
    name: str, *, role: str = "engine", revision: str | None = STABLE, node: str | None = "gpu-01", ready: bool = True,
    phase: str = "Running", restarts: int = 0, message: str | None = None,
) -> Object:  # fmt: skip
    """A pod of a service."""
    return {
        "name": name, "role": role, "phase": phase, "ready": ready, "revision": revision, "node": node,
        "restarts": restarts, "message": message,
    }  # fmt: skip


def event(when: float, reason: str, message: str, kind: str = "Normal", of: str = "LLMService/qwen") -> Object:
    """An event of Kubernetes."""
    return {"time": when, "type": kind, "reason": reason, "message": message, "object": of, "count": 1}


def set_condition(held: Object, kind: str, status: str, reason: str, message: str) -> None:
    """Sets one condition of the LLMService ``held``."""
    conditions = held["status"]["conditions"]
    found = next((condition for condition in conditions if condition["type"] == kind), None)
    if found is None:
        found = copy.deepcopy(conditions[0]) | {"type": kind}
        conditions.append(found)
    found |= {"status": status, "reason": reason, "message": message}


def with_canary(held: Object, now: float) -> Object:
    """``held`` in the second of three steps of a canary."""
    llm = held["object"]
    llm["metadata"]["generation"] = llm["status"]["observedGeneration"] = 8
    llm["spec"]["engine"]["contextLength"] = 65536
    llm["spec"]["rollout"] = {
        "maxSurge": 1,
        "canary": {"steps": [5, 25, 50], "interval": "5m", "minRequests": 200, "latencyTolerance": 15,
                   "answerTolerance": 20},
    }  # fmt: skip
    status = llm["status"]
    status["revision"] |= {"current": CANARY, "previous": STABLE, "stable": STABLE, "updating": True, "mostReady": 2}
    status["revision"]["progressedAt"] = stamp(now - 170)
    status["canary"] = {
        "revision": CANARY,
        "stable": STABLE,
        "phase": "Running",
        "weight": 25,
        "since": stamp(now - 170),
    }
    status["updatedReplicas"] = 2
    message = f"revision {CANARY} has 25 % of the requests, {STABLE} the others"
    set_condition(llm, "Progressing", "True", "Canary", message)
    set_condition(llm, "Reconciling", "True", "Canary", message)
    for index in (2, 3):
        held["pods"][index] = pod(engine_name(index, CANARY), revision=CANARY)
    held["events"] += [
        event(now - 640, "CanaryStarted", f"revision {CANARY} gets 5 % of the requests"),
        event(now - 170, "CanaryStep", f"revision {CANARY} gets 25 % of the requests: 214 requests, none worse"),
    ]
    return held


def with_failure(held: Object, now: float) -> Object:
    """``held`` with its last engine in a crash loop, and with an adapter that is missing there."""
    llm, failing = held["object"], held["pods"][3]
    failing |= {"ready": False, "restarts": 10}
    failing["message"] = f"container engine ended with exit 1 (10 restarts): {LAST_LINE}"
    status = llm["status"]
    status |= {"phase": "Degraded", "readyReplicas": 3, "adaptersReady": "1/2"}
    status["failures"] = [
        {"pod": failing["name"], "container": "engine", "reason": "CrashLoopBackOff", "exitCode": 1, "restarts": 10,
         "message": "the engine ran out of GPU memory; lower spec.engine.memoryFraction or spec.engine.maxNumSeqs",
         "lastLog": LAST_LINE},
    ]  # fmt: skip
    summary = f"pod {failing['name']}: the engine ran out of GPU memory"
    set_condition(llm, "Ready", "True", "Ready", "3 of 4 engines ready")
    set_condition(llm, "WorkersReady", "True", "SomeReady", "3 of 4 engines ready")
    set_condition(llm, "Degraded", "True", "CrashLoopBackOff", f"{summary}: {LAST_LINE}")
    set_condition(llm, "AdaptersReady", "False", "Loading", "support is on 3 of 4 engines")
    set_condition(llm, "Progressing", "True", "Starting", "3 of 4 engines ready; one restarts")
    status["adapters"][1] |= {
        "loaded": 3,
        "pods": status["adapters"][1]["pods"][:3],
        "reason": "the engine is not ready",
    }
    held["events"] += [
        event(now - 95, "BackOff", "Back-off restarting failed container engine", "Warning", f"Pod/{failing['name']}")
        | {"count": 37},
        event(now - 12, "EngineFailing", summary, "Warning"),
    ]
    return held


def public(held: Object) -> Object:
    """What a client with a key may see of the service ``held``: no spec, pods, events and messages."""
    llm = held["object"]
    shown = ("phase", "desiredReplicas", "replicas", "readyReplicas", "revision")
    status = {key: llm["status"][key] for key in shown if key in llm["status"]}
    status["conditions"] = [
        {key: condition[key] for key in ("type", "status", "reason", "lastTransitionTime")}
        for condition in llm["status"]["conditions"]
    ]
    return {"reported": held["reported"], "object": {**llm, "spec": {}, "status": status}, "pods": [], "events": []}


def public_endpoint(endpoint: Object) -> Object:
    """What a client with a key may see of an engine: neither address nor load."""
    unknown = (
        "why", "running", "waiting", "maxRunning", "kvUsed", "kvTokens", "kvTokensTotal", "prefixHit", "acceptance",
        "tokensPerSecond",
    )  # fmt: skip
    return {**endpoint, **dict.fromkeys(unknown), "address": "", "models": [], "adapters": [], "gpus": []}


def _object(now: float, engines: int, name: str) -> Object:
    began = stamp(now - 2710)
    conditions = [
        _condition("Ready", "Ready", f"{engines} of {engines} engines ready", began),
        _condition("SpecValid", "Valid", "the spec is valid", began),
        _condition("ModelCached", "Downloaded", "hf://Qwen/Qwen3-8B is in the cache (15.26Gi, 12 files)", began),
        _condition("PreflightPassed", "PassedWithWarnings", "1 item with a warning", began),
        _condition(
            "ModelFits", "Measured", "the KV cache holds 393216 tokens: 12.0 requests of 32768 tokens at once", began
        ),
        _condition("WorkersReady", "AllReady", f"{engines} of {engines} engines ready", began),
        _condition("RouterReady", "AllReady", "2 of 2 routers ready", began),
        _condition("AdaptersReady", "Loaded", "2 adapters are on all engines that are to have them", began),
        _condition("Scaling", "Deciding", "as it should be", began),
        _condition("SpeculationEffective", "Effective", "0.7 of the draft tokens were accepted", began),
        _condition("Progressing", "Complete", "revision 4ca6cbb5 runs everywhere", began, "False"),
        _condition("Degraded", "AsExpected", "nothing fails", began, "False"),
        _condition("Reconciling", "Complete", "", began, "False"),
        _condition("Stalled", "AsExpected", "", began, "False"),
    ]
    pods = [engine_name(index, name=name) for index in range(min(engines, 16))]
    return {
        "apiVersion": "serving.bladellm.io/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": name, "namespace": "team-a", "generation": 7},
        "spec": {
            "model": {"uri": "hf://Qwen/Qwen3-8B", "servedNames": ["qwen3-8b", "qwen"]},
            "engine": {"contextLength": 32768, "dtype": "bfloat16", "gpus": {"count": 1}, "memoryFraction": "0.9",
                       "speculative": {"method": "ngram"}, "lora": {}},
            "replicas": engines,
            "scaling": {"mode": "SLO", "min": 2, "max": max(8, engines), "slo": {"ttft": "500ms", "tpot": "40ms"}},
            "router": {"replicas": 2, "policy": "auto"},
            "adapters": [{"name": "sql", "uri": "hf://acme/sql-lora"}, {"name": "support", "uri": "hf://acme/support"}],
        },
        "status": {
            "observedGeneration": 7,
            "phase": "Ready",
            "url": f"http://{name}-router.team-a:8080/v1",
            "selector": f"app.kubernetes.io/instance={name}",
            "desiredReplicas": engines, "replicas": engines, "readyReplicas": engines, "updatedReplicas": engines,
            "revision": {"current": STABLE, "stable": STABLE, "mostReady": engines},
            "conditions": conditions,
            "model": {"bytes": 16381470720, "downloaded": 16381470720},
            "preflight": [_preflight(pod) for pod in pods],
            "adapters": [
                {"name": "sql", "desired": engines, "loaded": engines, "pods": pods, "bytes": 167772160},
                {"name": "support", "desired": engines, "loaded": engines, "pods": pods, "bytes": 83886080},
            ],
            "adaptersReady": "2/2",
            "fit": {"source": "measured", "revision": STABLE, "weights": "15.26Gi", "activations": "1.80Gi",
                    "graphs": "0.62Gi", "kvCache": "54.00Gi", "kvTokens": 393216, "contextLength": 32768,
                    "concurrency": "12.0"},
            "scaling": {
                "mode": "SLO", "replicas": engines, "needed": max(1, engines - 1),
                "reason": "41.2 requests/s: TTFT 341 ms, TPOT 28 ms expected",
                "changes": [
                    f"{stamp(now - 2400)} 1 -> 2: TTFT 812 ms of 500 ms",
                    f"{stamp(now - 1260)} {max(1, engines - 1)} -> {engines}: 40.0 requests/s: TTFT 335 ms expected",
                ],
            },
            "cost": {
                "currency": "EUR", "window": "1h", "perHour": f"{engines * 2.5:.2f}", "perMillionTokens": "0.31",
                "perMillionCompletionTokens": "1.12", "engineHours": f"{engines}.0", "promptTokens": 23400000,
                "completionTokens": 8930000, "observedAt": stamp(now - 30),
            },
            "speculation": {"drafted": 500000, "acceptance": "0.7"},
        },
    }  # fmt: skip


def _condition(kind: str, reason: str, message: str, since: str, status: str = "True") -> Object:
    return {
        "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
        "observedGeneration": 7,
    }  # fmt: skip


def _preflight(name: str) -> Object:
    return {
        "pod": name, "pass": 4, "warning": 1, "failed": 0,
        "items": [
            {"name": "check_shm", "status": "PASS", "detail": "shared Memory is 17179869184 bytes"},
            {"name": "check_pb_env", "status": "WARNING",
             "detail": "Env var PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python is slow; unset it in spec.engine.env"},
            {"name": "check_flops_diff", "status": "PASS", "detail": "max flops diff amoung 1 devices is 1.00"},
            {"name": "check_memory_fit", "status": "PASS", "detail": _FIT},
            {"name": "check_model", "status": "PASS",
             "detail": "Qwen3ForCausalLM, 36 layers, 8190735360 parameters; tool calls: hermes; reasoning: qwen3"},
        ],
    }  # fmt: skip
