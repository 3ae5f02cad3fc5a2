"""Failure cases: services that cannot start, each for one common reason, and what their users should do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import yaml

from e2e.support.service import manifest

REGISTRY: Final = "registry.example.com"
"""Stands for the test's registry, whose port differs each time."""
QUOTA: Final = "team-gpus"
"""ResourceQuota that leaves no NVIDIA GPU to the namespace."""
GPUS: Final = "amd.com/gpu"
"""GPUs which are all in use by another pod."""


@dataclass(frozen=True)
class FailureCase:
    """One LLMService that fails, and why."""

    name: str
    """Name of the service."""
    title: str
    spec: str
    """The lines of ``spec`` that matter, as YAML."""
    reason: str
    """Reason of the condition Ready."""
    field: str
    """The field that the message says to change."""
    advice: str
    phase: str = "Failed"

    def manifest(self, registry: str, env: list[dict[str, str]]) -> dict[str, Any]:
        """The whole LLMService. ``registry`` is the test's; ``env`` is that of engines, with the address of its hub."""
        spec = yaml.safe_load(self.spec.replace(REGISTRY, registry))
        engine = {"env": env, "resources": SMALL, **spec.pop("engine", {})}
        return manifest(self.name, **spec, engine=engine, router={"resources": SMALL})


SMALL: Final = {"requests": {"cpu": "10m", "memory": "64Mi"}}

FAILURE_CASES: Final[tuple[FailureCase, ...]] = (
    FailureCase(
        "wrong-image",
        "The image does not exist",
        """
        engine:
          image: registry.example.com/bladellm/engine:9.9.9
        """,
        "ImagePullBackOff",
        "spec.engine.image",
        "Correct the name or tag, or remove the field to get the image of the operator's release. A registry that asks "
        "for a password needs `imagePullSecrets` in `spec.engine.podTemplate.spec`.",
    ),
    FailureCase(
        "too-much-cpu",
        "No node has so much CPU or memory free",
        """
        engine:
          resources:
            requests: {cpu: "64"}
        """,
        "Unschedulable",
        "spec.engine.resources",
        "Request less, add a node, or free one: `kubectl describe nodes` shows under `Allocated resources` what is "
        "in use. The pod starts by itself as soon as it fits.",
    ),
    FailureCase(
        "no-gpu-left",
        "All GPUs are taken",
        """
        engine:
          gpus: {count: 1, resource: amd.com/gpu}
        """,
        "Unschedulable",
        "spec.engine.gpus",
        "Wait for a GPU, add a node, or scale something down. During a change of the spec one engine more than "
        "`replicas` is started first; where there is no GPU for it, set `spec.rollout` to `maxSurge: 0, "
        "maxUnavailable: 1`.",
    ),
    FailureCase(
        "unknown-gpu",
        "No node knows the GPU resource",
        """
        engine:
          gpus: {count: 1, resource: example.com/gpu}
        """,
        "Unschedulable",
        "spec.engine.gpus",
        "The scheduler's message is the same for a resource that is used up and for one that does not exist. If "
        "`kubectl "
        "describe nodes` does not show it under `Allocatable`, its name is wrong or the device plugin does not run.",
    ),
    FailureCase(
        "no-claim",
        "The claim with the model does not exist",
        """
        model:
          uri: pvc://models/qwen
        """,
        "Unschedulable",
        "spec.model.uri",
        "The part after `pvc://` is the name of a PersistentVolumeClaim in the service's own namespace: correct it, or "
        "make the claim.",
    ),
    FailureCase(
        "unbound-claim",
        "The claim for downloads gets no volume",
        """
        model:
          uri: hf://acme/demo
          cache: {size: 20Gi}
        """,
        "Unschedulable",
        "spec.model.cache",
        "`kubectl get storageclass` shows no default class, or its provisioner fails: name a class in "
        "`spec.model.cache.storageClassName`, or an existing claim in `claimName`. `kubectl describe pvc` has the "
        "provisioner's message.",
    ),
    FailureCase(
        "wrong-path",
        "The claim has no model at that path",
        """
        model:
          uri: pvc://demo-models/no-such-model
        """,
        "CheckFailed",
        "spec.model.uri",
        "The part behind the claim's name is the folder with the model's `config.json`, seen from the volume's root.",
    ),
    FailureCase(
        "too-large",
        "Model and KV cache do not fit into memory",
        """
        engine:
          kvCacheBytes: 4Gi
          maxNumSeqs: 256
          resources:
            limits: {memory: 1Gi}
        """,
        "CheckFailed",
        "spec.engine.kvCacheBytes",
        "The message ends with values that fit. Or raise `spec.engine.resources.limits.memory`.",
    ),
    FailureCase(
        "no-secret",
        "The Secret with the hub's token does not exist",
        """
        model:
          uri: hf://acme/demo
          tokenSecretRef: {name: hub-token}
        """,
        "CreateContainerConfigError",
        "spec.model.tokenSecretRef",
        "`kubectl create secret generic hub-token --from-literal=token=hf_…` in the service's namespace; the pod "
        "then continues by itself.",
    ),
    FailureCase(
        "no-token",
        "The hub wants a token",
        """
        model:
          uri: hf://acme/demo
        """,
        "DownloadFailed",
        "spec.model.tokenSecretRef",
        "Put a token that may read the model into a Secret and name it in `spec.model.tokenSecretRef`.",
    ),
    FailureCase(
        "not-on-the-hub",
        "The hub does not have the model",
        """
        model:
          uri: hf://acme/no-such-model
        """,
        "DownloadFailed",
        "spec.model.uri",
        "Correct the name. huggingface.co itself responds as in the case before: without a token, a private model "
        "and a missing one look the same.",
    ),
    FailureCase(
        "no-way-to-the-hub",
        "The hub cannot be reached",
        """
        model:
          uri: hf://acme/demo
        engine:
          env:
            - {name: HF_ENDPOINT, value: "http://hub.example.com"}
        """,
        "DownloadFailed",
        "spec.engine.env",
        "Let the namespace's pods reach the hub (a proxy goes into `spec.engine.env` as `HTTPS_PROXY`), name a mirror, "
        "or put the model into a claim and serve it from there with `pvc://`.",
    ),
    # Far too little: a container that lacks only some reads its libraries over and over, and is killed after minutes.
    FailureCase(
        "out-of-memory",
        "The engine is killed for its memory",
        """
        check: {mode: "Off"}
        engine:
          resources:
            limits: {memory: 32Mi}
        """,
        "OOMKilled",
        "spec.engine.resources.limits.memory",
        "Raise the limit, or lower `spec.engine.kvCacheBytes`. With `memoryFit` among `spec.check.items` the check "
        "reports beforehand how much it takes. `/dev/shm` counts too.",
    ),
    FailureCase(
        "wrong-flag",
        "The engine ends again and again",
        """
        engine:
          extraArgs: [--max_num_batched_token, "4096"]
        """,
        "CrashLoopBackOff",
        "spec.engine.extraArgs",
        "The message ends with the last line the engine printed; `kubectl logs POD -c engine --previous` has the rest.",
    ),
    FailureCase(
        "small-shm",
        "The check warns, and warnings stop",
        """
        check: {mode: Enforce, items: [shm, modelFiles]}
        engine:
          shmSize: 16Mi
        """,
        "CheckFailed",
        "spec.engine.shmSize",
        "Fix what the item reports, or set `spec.check.mode` to `Warn`: then only FAILED stops an engine.",
    ),
    FailureCase(
        "not-allowed",
        "Pod Security does not allow the pod",
        """
        engine:
          podTemplate:
            spec: {hostNetwork: true}
        """,
        "PodSecurityViolation",
        "spec.engine.podTemplate",
        "Without an overlay the pods satisfy the `restricted` standard: remove what the message names. If it has to "
        "be, whoever owns the namespace can label it with a weaker standard.",
    ),
    FailureCase(
        "over-quota",
        "The namespace's quota is used up",
        """
        engine:
          gpus: {count: 1, resource: nvidia.com/gpu}
        """,
        "QuotaExceeded",
        "spec.engine.gpus",
        "Request less, scale something down, or have the ResourceQuota raised; Kubernetes retries by itself.",
    ),
    FailureCase(
        "wrong-overlay",
        "The API server refuses the overlay",
        """
        engine:
          podTemplate:
            spec:
              tolerations:
                - {key: nvidia.com/gpu, operator: Exist}
        """,
        "ApplyRejected",
        "spec.engine.podTemplate",
        "The message is the API server's and names the field in the Deployment; in `spec.engine.podTemplate` it is the "
        "same path behind `template`.",
    ),
    FailureCase(
        "own-command",
        "The overlay changes what is the operator's",
        """
        engine:
          podTemplate:
            spec:
              containers:
                - {name: engine, command: [sleep, infinity]}
        """,
        "InvalidSpec",
        "spec.engine.podTemplate.spec.containers[0].command",
        "Remove it. Until then nothing of the service is changed; a running one keeps running as before.",
        phase="Invalid",
    ),
)
