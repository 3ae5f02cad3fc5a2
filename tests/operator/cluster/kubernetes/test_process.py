"""The operator's process: its options, and how it responds to probes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from operator_support.apiserver import fake_api_server, llm_service
from operator_support.local import free_port, until
from operator_support.mini_cluster import service
from operator_support.watching import FAST

from blade_operator import metrics
from blade_operator.cli import run
from blade_operator.cli.arguments import parse
from blade_operator.cluster.kubernetes.api import Api
from blade_operator.cluster.kubernetes.fence import NotLeader
from blade_operator.cluster.kubernetes.watching import kopf_settings
from blade_operator.controller import health
from blade_operator.controller import process as module
from blade_operator.controller.process import Process, Settings
from blade_operator.main import main
from blade_operator.model.objects import Key
from blade_operator.model.observed import Observed
from blade_operator.render import Defaults
from blade_telemetry.logs import JsonFormatter


async def _get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        async with session.get(path) as response:
            return response.status, await response.text()


async def test_probes_say_what_is_wrong() -> None:
    wrong = {"healthz": "", "readyz": "waiting for the first lists"}
    with health.serve(0, lambda: wrong["healthz"], lambda: wrong["readyz"], "127.0.0.1") as port:
        assert await _get(port, "/healthz") == (200, "ok\n")
        assert await _get(port, "/readyz") == (503, "waiting for the first lists\n")
        wrong["readyz"] = ""
        assert await _get(port, "/readyz") == (200, "ok\n")
        metrics.QUEUE_DEPTH.set(7)
        status, text = await _get(port, "/metrics")
        assert status == 200
        assert "blade_operator_queue_depth 7.0" in text


@pytest.mark.parametrize("namespaces", [(), ("team",)])
async def test_a_process_is_healthy_then_ready_and_ends_when_it_is_stopped(
    namespaces: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kopf_settings, "BACKOFFS", FAST)
    ended = asyncio.Event()
    async with fake_api_server() as server:
        server.put("LLMService", llm_service(0))
        process = Process(server.configuration, _settings(namespaces), ended.set)
        await process.start()
        port = process._settings.http_port
        assert (await _get(port, "/healthz"))[0] == 200
        await until(lambda: process._source.liveness_url)
        assert (await _get(port, "/healthz"))[0] == 200
        await until(lambda: not process._unready())
        assert await _get(port, "/readyz") == (200, "ok\n")
        assert process._fence.is_open
        controller = process._controller
        assert controller is None  # the server has no Secret with the root key
        monkeypatch.setattr(process, "_unhealthy", lambda: "a reconcile has taken 121 s")
        process._source.liveness_url = None  # kopf caches a good result for ten seconds
        assert await _get(port, "/healthz") == (503, "a reconcile has taken 121 s\n")
        if namespaces:
            server.delete_namespace("team")
            await until(lambda: process._unready().startswith("no namespace can be watched"), 60)
        await process.stop()
        assert ended.is_set()
        assert not process.failed
        assert not process._fence.is_open


@pytest.mark.parametrize("how", ["stopped", "lost"])
async def test_a_leader_that_ends_frees_its_lease_and_one_that_lost_it_ends(how: str) -> None:
    ended = asyncio.Event()
    async with fake_api_server() as server:
        settings = dataclasses.replace(_settings(()), lease_name="bladellm-operator")
        process = Process(server.configuration, settings, ended.set)
        await process.start()
        await until(lambda: process._fence.is_open and process._source.liveness_url)
        assert server.lease is not None
        assert server.lease["spec"]["holderIdentity"] == "me"
        if how == "stopped":
            await process.stop()
            assert server.lease["spec"]["holderIdentity"] == ""
            assert not process.failed
        else:
            server.lease["spec"]["holderIdentity"] = "another"
            server.lease["metadata"]["resourceVersion"] = "2"
            process._election._lease._held = None  # type: ignore[union-attr]
            await asyncio.wait_for(ended.wait(), 10)
            assert process.failed
            await process.stop()
            assert server.lease["spec"]["holderIdentity"] == "another"
        assert not process._fence.is_open
        assert {request.path.rpartition("/")[2] for request in server.writes} <= {
            "leases",
            "bladellm-operator",
            "secrets",
        }


async def test_a_root_key_that_changes_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KEY_SECONDS", 0.01)
    keys = [b"a" * 32, b"a" * 32, b"a" * 32, b"b" * 32]

    async def root_key(api: Api, namespace: str) -> bytes:
        assert namespace == "system"
        if len(keys) == 2:
            keys.pop(0)
            raise ValueError("the Secret holds no key")
        if len(keys) > 1:
            return keys.pop(0)
        return keys[0]

    monkeypatch.setattr(module, "root_key", root_key)
    async with fake_api_server() as server:
        process = Process(server.configuration, _settings(()), lambda: None)
        await process.start()
        await until(lambda: process._key == b"a" * 32)
        observed = Observed(service())
        secret = process._decide(observed, datetime.now(UTC)).apply[0]
        await until(lambda: process._key == b"b" * 32)
        changed = process._decide(observed, datetime.now(UTC)).apply[0]
        assert (secret["kind"], secret["metadata"]["name"]) == ("Secret", changed["metadata"]["name"])
        assert secret["data"] != changed["data"]
        await process.stop()
        assert not process.failed


def _settings(namespaces: tuple[str, ...]) -> Settings:
    return Settings("system", namespaces, Defaults(), None, "system/bladellm", "me", free_port(), 2)


async def test_a_standby_serves_external_metrics_with_the_key_that_the_leader_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0.01)
    keys = list[bytes]()

    async def root_key(api: Api, namespace: str) -> bytes:
        if not keys:
            raise NotLeader
        return keys[0]

    monkeypatch.setattr(module, "root_key", root_key)
    async with fake_api_server() as server:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": "another", "leaseDurationSeconds": 60, "renewTime": stamp}
        server.lease = {"metadata": {"resourceVersion": "1"}, "spec": spec}
        server.put("LLMService", llm_service(0, name="qwen"))
        server.put("LLMService", llm_service(0, name="llama"))
        server.put("LLMService", llm_service(0, name="qwen", namespace="other"))
        settings = dataclasses.replace(
            _settings(()), lease_name="x", external_metrics_port=free_port(), external_metrics_certificate=tmp_path
        )
        process = Process(server.configuration, settings, lambda: None)
        await process.start()
        await until(lambda: not process._unready())
        assert not process._fence.is_open
        names = frozenset({"qwen", "absent"})
        found = process._services("team", names), process._services("team", None), process._services("empty", None)
        qwen, llama = Key("team", "qwen"), Key("team", "llama")
        assert [sorted(key for key, _ in each) for each in found] == [[qwen], [llama, qwen], []]
        assert not process._key
        keys.append(b"a" * 32)
        await until(lambda: process._key)
        taken = Process(server.configuration, dataclasses.replace(settings, http_port=0), lambda: None)
        with pytest.raises(OSError, match="in use"):
            await taken.start()
        await taken.stop()
        await process.stop()
        assert not process.failed
        assert {request.path.rpartition("/")[2] for request in server.writes} == set()


def test_options_of_run() -> None:
    options = parse(["run", "--namespaces", "a, b", "--no-leader_elect", "--http_port", "0", "--workers", "3"])
    assert options.namespaces == ["a", "b"]
    assert not options.leader_elect
    assert (options.http_port, options.workers) == (0, 3)
    defaults = parse(["run"])
    assert defaults.leader_elect
    assert (defaults.lease_name, defaults.http_port, defaults.workers) == ("bladellm-operator", 8080, 8)
    assert run._settings(defaults).external_metrics_port == 0
    options = parse(["run", "--external_metrics_port", "8443", "--external_metrics_certificate", "/tls"])
    settings = run._settings(options)
    assert (settings.external_metrics_port, settings.external_metrics_certificate) == (8443, Path("/tls"))


def test_options_become_defaults_of_what_is_rendered() -> None:
    def defaults(*options: str) -> Defaults:
        return run._settings(parse(["run", *options])).defaults

    assert defaults() == Defaults()
    api_server = ("--api_server", "10.0.0.1/32:6443, fd00::1/128:443")
    prometheus = ("--prometheus_namespaces", "a, b", "--prometheus_labels", "app=prometheus,tier=")
    options = ("--router_image", "r:1", "--watch_keys", "--openshift", "--group_kind", "StatefulSet")
    assert defaults(*options, *prometheus, *api_server) == Defaults(
        router_image="r:1",
        watch_keys=True,
        openshift=True,
        group_kind="StatefulSet",
        api_server=(("10.0.0.1/32", 6443), ("fd00::1/128", 443)),
        prometheus_namespaces=("a", "b"),
        prometheus_labels={"app": "prometheus", "tier": ""},
    )
    nobody = defaults("--prometheus_namespaces=", "--prometheus_labels=")
    assert (nobody.prometheus_namespaces, nobody.prometheus_labels) == ((), {})


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (["--workers", "0"], "'0' is not a number from 1 up"),
        (["--http_port", "-1"], "'-1' is not a port"),
        (["--group_kind", "Deployment"], "invalid choice: 'Deployment'"),
        (["--leader-elect"], "did you mean '--leader_elect'?"),
        (["--watch-keys"], "did you mean '--watch_keys'?"),
        (["--no_watch_keys"], "did you mean '--no-watch_keys'?"),
        (["--api_server", "10.0.0.1:6443,10.0.0.1/33:1"], "'10.0.0.1/33:1' is not CIDR:PORT"),
        (["--prometheus_labels", "a=b,prometheus"], "'prometheus' is not a label: use NAME=VALUE"),
    ],
)
def test_a_wrong_option_is_named(argument: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["run", *argument])
    assert message in capsys.readouterr().err


def test_without_a_cluster_it_says_how_to_name_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    before = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        assert main(["run", "--kubeconfig", "/does/not/exist"]) == 1
    finally:
        logging.getLogger().handlers[:], logging.getLogger().level = before
    assert "give --kubeconfig FILE or $KUBECONFIG" in capsys.readouterr().err


def test_json_lines_are_json() -> None:
    record = logging.LogRecord("a.b", logging.WARNING, "", 0, 'said "%s"', ("x",), None)
    line = json.loads(JsonFormatter().format(record))
    assert (line["level"], line["logger"], line["message"]) == ("WARNING", "a.b", 'said "x"')
