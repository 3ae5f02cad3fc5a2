"""The real router on the local runtime: it is replaced, killed and multiplied without a request that fails."""

from __future__ import annotations

import json
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from operator_support.loop import Loop, loop, manifest

from blade_operator.cluster.local.pod_status import is_ready
from blade_operator.model.objects import Object

TLS = Path(__file__).parents[3] / "router_support" / "tls"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Loop]:
    with loop(tmp_path, real_router=True) as each:
        yield each


class Load:
    """Requests without a pause, from one client that keeps its connection and one that opens one for each."""

    def __init__(self, url: str) -> None:
        self.results: Counter[str] = Counter()
        self._stop = threading.Event()
        self._url = f"{url}/models"
        self._threads = [threading.Thread(target=self._run, args=(keep,), daemon=True) for keep in (True, False)]
        for thread in self._threads:
            thread.start()

    def _run(self, keep: bool) -> None:
        limits = httpx.Limits(max_keepalive_connections=1 if keep else 0)
        with httpx.Client(limits=limits, trust_env=False, timeout=30) as client:
            while not self._stop.wait(0.002):
                try:
                    self.results[str(client.get(self._url).status_code)] += 1
                except httpx.HTTPError as error:
                    self.results[repr(error)] += 1

    def stop(self) -> Counter[str]:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.results


def _routers(running: Loop) -> dict[str, Object]:
    return {pod["metadata"]["name"]: pod for pod in running.objects("Pod") if "router" in pod["metadata"]["name"]}


def test_a_router_is_replaced_and_multiplied_without_a_failed_request(running: Loop, tmp_path: Path) -> None:
    running.start("-f", str(manifest(tmp_path)))
    running.until(lambda: running.ready("qwen"))
    url = running.service("qwen")["status"]["url"]
    assert url == f"http://127.0.0.1:{running.port}/v1"
    load = Load(url)
    try:
        _change(running, tmp_path, 1, resources={"limits": {"memory": "1Gi"}})
        _change(running, tmp_path, 2)
        _change(running, tmp_path, 1)
    finally:
        results = load.stop()
    assert set(results) == {"200"}
    assert results["200"] > 100


def test_requests_wait_while_a_service_comes_from_zero(running: Loop, tmp_path: Path) -> None:
    running.start("-f", str(manifest(tmp_path, replicas=0)))
    running.until(lambda: running.condition("qwen", "RouterReady") == "True")
    url = running.service("qwen")["status"]["url"].removesuffix("/v1")

    def get_version() -> httpx.Response:
        """A route that an engine of the product has, and the stand-in has not."""
        return httpx.get(f"{url}/version", trust_env=False, timeout=60)

    def get_version_once_it_is_scaled_up() -> int:
        response = get_version()
        while response.status_code == 503:
            assert response.json()["error"]["code"] == "scaled_to_zero"
            response = get_version()
        return response.status_code

    with ThreadPoolExecutor() as pool:
        assert get_version().json()["error"]["code"] == "scaled_to_zero"
        responses = [pool.submit(get_version_once_it_is_scaled_up) for _ in range(3)]
        running.command("scale", "qwen", "--replicas", "1")
        assert [each.result() for each in responses] == [404] * 3
    running.command("scale", "qwen", "--replicas", "0")
    running.until(lambda: get_version().status_code == 503)


def _secret(folder: Path, name: str, kind: str = "Opaque", **data: str) -> str:
    path = folder / f"{name}.yaml"
    obj = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "stringData": data}
    path.write_text(json.dumps(obj))
    return str(path)


def test_keys_and_a_certificate_from_secrets_are_what_the_routers_go_by(running: Loop, tmp_path: Path) -> None:
    pem = (TLS / "server.pem").read_text()
    certificate = {"tls.crt": pem, "tls.key": pem}
    secrets = [
        _secret(tmp_path, "keys", alice="sk-alice"),
        _secret(tmp_path, "tls", "kubernetes.io/tls", **certificate),
    ]
    router = {"replicas": 2, "workers": 2, "auth": {"keysSecret": {"name": "keys"}}, "tls": {"secretName": "tls"}}
    running.start("-f", secrets[0], "-f", secrets[1], "-f", str(manifest(tmp_path, router=router)))
    running.until(lambda: running.ready("qwen") and len(_routers(running)) == 2)
    url = running.service("qwen")["status"]["url"]
    trusted = ssl.create_default_context(cafile=str(TLS / "ca.crt"))

    def status_codes(key: str) -> set[int]:
        """Several, each on a connection of its own: some from every process."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return {
            httpx.get(f"{url}/models", headers=headers, verify=trusted, trust_env=False).status_code for _ in range(12)
        }

    running.until(lambda: status_codes("sk-alice") == {200})
    assert (status_codes(""), status_codes("sk-bob")) == ({401}, {401})
    routers = set(_routers(running))
    running.command("apply", "-f", _secret(tmp_path, "keys", alice="sk-carol"))
    running.until(lambda: status_codes("sk-carol") == {200} and status_codes("sk-alice") == {401})
    assert set(_routers(running)) == routers

    # What shows the routers' inside is elsewhere, in plain HTTP, one port a replica.
    public = url.removesuffix("/v1")
    assert httpx.get(f"{public}/metrics", verify=trusted, trust_env=False).status_code == 404
    for name, admin in _admin_urls(running).items():
        assert 'blade_router_requests_total{code="401"}' in httpx.get(f"{admin}/metrics", trust_env=False).text, name
        assert len(httpx.get(f"{admin}/status", trust_env=False).json()["workers"]) == 2
    file = running.layout.endpoints / "default" / "qwen-router.json"
    replicas = {each["name"]: each["internal_url"] for each in json.loads(file.read_text())["endpoints"]}
    assert replicas == _admin_urls(running)


def _admin_urls(running: Loop) -> dict[str, str]:
    return {
        name: f"http://127.0.0.1:{port['containerPort']}"
        for name, pod in _routers(running).items()
        for port in pod["spec"]["containers"][0]["ports"]
        if port["name"] == "admin"
    }


def _change(running: Loop, folder: Path, replicas: int, **router: Any) -> None:
    """Apply another router, and wait until exactly that runs and is ready."""
    before = set(_routers(running))
    running.command("apply", "-f", str(manifest(folder, router={"replicas": replicas, **router})))
    running.until(lambda: set(_routers(running)) != before)
    running.until(lambda: len(_routers(running)) == replicas and all(map(is_ready, _routers(running).values())))
