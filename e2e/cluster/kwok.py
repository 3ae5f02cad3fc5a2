"""Fake nodes and pods for tests of scale.

They show what the operator does with many objects, never that an engine ran.
"""

import json
from typing import Any

import msgspec

from blade_protocol.check import CheckItem, CheckReport
from e2e.cluster.layout import KWOK_PODS, NODE_ADDRESS, Layout

LABEL = {"type": "kwok"}
TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}

CHECK = CheckReport(
    passed=1,
    warnings=0,
    failed=0,
    items=(CheckItem(name="kwok", status="PASS", detail="a fake pod: nothing was checked"),),
)
"""What a fake pod's `check` init container leaves as its termination message."""

POD_READY = """\
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
hostIP: {{ NodeIPWith .spec.nodeName | Quote }}
podIP: {{ PodIPWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace | Quote }}
conditions:
- {type: Initialized, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: ContainersReady, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: Ready, status: "True", lastTransitionTime: {{ $now | Quote }}}
initContainerStatuses:
{{ range .spec.initContainers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: fake
  ready: true
  restartCount: 0
  state:
    terminated:
      exitCode: 0
      reason: Completed
      startedAt: {{ $now | Quote }}
      finishedAt: {{ $now | Quote }}
      {{ if eq .name "check" }}
      message: CHECK_MESSAGE
      {{ end }}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: fake
  ready: true
  started: true
  restartCount: 0
  state:
    running:
      startedAt: {{ $now | Quote }}
{{ end }}
"""


def _stage(name: str, expressions: list[dict[str, Any]], after: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
            "selector": {"matchExpressions": expressions},
            "next": after,
        },
    }


def stages() -> list[dict[str, Any]]:
    """A pod's whole life: ready at once, init containers done, gone as soon as it is deleted."""
    # JSON within JSON is a valid YAML string.
    ready = POD_READY.replace("CHECK_MESSAGE", json.dumps(msgspec.json.encode(CHECK).decode()))
    new = [
        {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"},
        {"key": ".status.podIP", "operator": "DoesNotExist"},
    ]
    deleted = [{"key": ".metadata.deletionTimestamp", "operator": "Exists"}]
    return [
        _stage("pod-ready", new, {"statusTemplate": ready}),
        _stage("pod-delete", deleted, {"finalizers": {"empty": True}, "delete": True}),
    ]


def kwok(layout: Layout) -> list[str]:
    config = layout.folder / "kwok.yaml"
    config.write_text("\n---\n".join(json.dumps(stage) for stage in stages()))
    selector = ",".join(f"{key}={value}" for key, value in LABEL.items())
    return [
        "kwok",
        f"--config={config}",
        f"--kubeconfig={layout.kubeconfig('kwok')}",
        f"--manage-nodes-with-label-selector={selector}",
        f"--cidr={KWOK_PODS}",
        f"--node-ip={NODE_ADDRESS}",
        "--node-lease-duration-seconds=20",
        "--server-address=127.0.0.1:10247",
    ]


def nodes(count: int) -> list[dict[str, Any]]:
    """Node objects; nothing lands on them without a toleration of `TAINT`."""
    room = {"cpu": "64", "memory": "512Gi", "pods": "1000", "nvidia.com/gpu": "64", "amd.com/gpu": "64"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {**LABEL, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
            },
            "spec": {"taints": [TAINT]},
            "status": {"capacity": room, "allocatable": room},
        }
        for name in (f"kwok-{number}" for number in range(count))
    ]
