"""LLMServices whose pods run on KWOK's fake nodes: any number of them costs nothing but the API server's work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from blade_operator.model.objects import Object
from blade_protocol.labels import API_VERSION, KIND
from e2e.cluster import OwnNode
from e2e.cluster.kwok import LABEL, TAINT
from e2e.support.waiting import until

OVERLAY: Final = {"spec": {"nodeSelector": LABEL, "tolerations": [TAINT]}}
"""``podTemplate`` that puts pods on fake nodes; without such nodes they wait for ever."""


def fake_service(namespace: str, name: str, **spec: Any) -> Object:
    """One engine and one router on fake nodes; ``spec`` replaces whole fields, those of ``engine`` one by one."""
    wanted = {
        "model": {"uri": "hf://acme/fake"},
        **spec,
        "engine": {"podTemplate": OVERLAY, **spec.get("engine", {})},
        "router": {"podTemplate": OVERLAY, **spec.get("router", {})},
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": wanted,
    }


@contextmanager
def fake_nodes(cluster: OwnNode, count: int) -> Iterator[None]:
    """Fake nodes meanwhile; their pods have to be leaving at the end."""
    cluster.add_kwok_nodes(count)
    try:
        yield
    finally:
        assigned = "jsonpath={.items[*].spec.nodeName}"
        pods = ("get", "pods", "-A", "-o", assigned)
        until(lambda: "kwok-" not in cluster.kubectl(*pods), 120, "the pods of the fake nodes are gone")
        cluster.kubectl("delete", "nodes", "-l", ",".join(f"{key}={value}" for key, value in LABEL.items()))
