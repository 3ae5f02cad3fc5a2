"""Dry-run requests to the API server, many times a second: kubectl needs a process each time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from blade_protocol.labels import GROUP, PLURAL, VERSION
from e2e.cluster import Cluster

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The API server's response to one object."""

    accepted: bool
    object: Object
    """The object as it would be stored; empty when refused."""
    message: str
    """Why not; empty when accepted."""


class DryRun:
    """Creates nothing. ``close`` it at the end."""

    def __init__(self, client: httpx.Client, namespace: str) -> None:
        self._client = client
        self._path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}"

    def create(self, service: Object) -> Verdict:
        """Would this LLMService be created? Unknown fields are refused, as ``kubectl apply`` does."""
        response = self._client.post(self._path, json=service, params={"dryRun": "All", "fieldValidation": "Strict"})
        body = response.json()
        if response.status_code == httpx.codes.CREATED:
            return Verdict(True, body, "")
        if response.status_code not in (httpx.codes.BAD_REQUEST, httpx.codes.UNPROCESSABLE_ENTITY):
            raise AssertionError(f"the API server returned {response.status_code}: {body}")
        return Verdict(False, {}, body["message"])


@contextlib.contextmanager
def dry_run(cluster: Cluster, namespace: str) -> Iterator[DryRun]:
    """Dry runs in ``namespace``, through a ``kubectl proxy`` that holds the credentials."""
    proxy = cluster.popen(["kubectl", "proxy", "--port=0"])
    try:
        assert proxy.stdout is not None
        address = proxy.stdout.readline().rpartition(" ")[2].strip()  # Starting to serve on 127.0.0.1:PORT
        with httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=30.0) as client:
            yield DryRun(client, namespace)
    finally:
        proxy.terminate()
        proxy.wait(timeout=10)
        if proxy.stdout is not None:
            proxy.stdout.close()
