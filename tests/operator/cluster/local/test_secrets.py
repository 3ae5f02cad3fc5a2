"""API keys and certificates on the local runtime: Secrets are files, and what is changed in them is seen at once."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from operator_support.local import pid_of
from operator_support.loop import Loop, loop, manifest

from blade_operator.model.objects import Object

TLS = Path(__file__).parents[3] / "router_support" / "tls"
ROUTER = {"auth": {"keysSecret": {"name": "team-keys"}}, "tls": {"secretName": "team-certificate"}, "workers": 2}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Loop]:
    with loop(tmp_path) as each:
        yield each


def _secret(folder: Path, name: str, kind: str = "Opaque", **data: str) -> str:
    path = folder / f"{name}.yaml"
    obj = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "stringData": data}
    path.write_text(json.dumps(obj))
    return str(path)


def _router(running: Loop) -> Object:
    [pod] = [each for each in running.objects("Pod") if "router" in each["metadata"]["name"]]
    return pod


def test_a_router_has_its_keys_and_its_certificate_from_secrets(running: Loop, tmp_path: Path) -> None:
    running.start("-f", str(manifest(tmp_path, router=ROUTER)))
    # Without its keys it does not start: it would let everybody in.
    running.until(lambda: 'secret "team-keys" not found' in str(running.objects("Event")))
    running.command("apply", "-f", _secret(tmp_path, "team-keys", alice="sha256:00"))
    running.until(lambda: 'secret "team-certificate" not found' in str(running.objects("Event")))
    pem = (TLS / "server.pem").read_text()
    certificate = {"tls.crt": pem, "tls.key": pem}
    running.command("apply", "-f", _secret(tmp_path, "team-certificate", "kubernetes.io/tls", **certificate))
    running.until(lambda: running.ready("qwen"))

    url = running.service("qwen")["status"]["url"]
    assert url == f"https://127.0.0.1:{running.port}/v1"
    trusted = ssl.create_default_context(cafile=str(TLS / "ca.crt"))
    with httpx.Client(verify=trusted, trust_env=False) as client:
        about: dict[str, Any] = client.get(url.replace("/v1", "/about")).json()
    words: list[str] = about["argv"]
    assert words[words.index("--workers") + 1] == "2"
    keys = Path(words[words.index("--keys") + 1])
    assert {file.name: file.read_text() for file in keys.iterdir()} == {"alice": "sha256:00"}
    assert (keys / "alice").stat().st_mode & 0o077 == 0

    pid = pid_of(_router(running), "router")
    running.command("apply", "-f", _secret(tmp_path, "team-keys", alice="sha256:01", bob="sha256:02"))
    running.until(lambda: {file.name for file in keys.iterdir()} == {"alice", "bob"})
    assert (keys / "alice").read_text() == "sha256:01"
    assert pid_of(_router(running), "router") == pid

    page = running.command("describe", "qwen")
    assert "keys from Secret team-keys" in page
    assert "TLS from Secret team-certificate" in page
