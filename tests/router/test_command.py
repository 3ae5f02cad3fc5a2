"""``blade_router`` as a program: its flags, how it starts, how it stops."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from router_support.engine import MockEngine
from router_support.serving import TEST_SECONDS, eventually, question, raw_post

from blade_protocol import limits
from blade_router.app import main
from blade_router.arguments import Options, parse_arguments, sources
from blade_router.kubernetes import Cluster


async def start(*flags: str, pass_fds: tuple[int, ...] = (), **environment: str) -> Process:
    command = (sys.executable, "-m", "blade_router.app", *flags)
    return await asyncio.create_subprocess_exec(*command, stderr=PIPE, env=os.environ | environment, pass_fds=pass_fds)


@contextlib.asynccontextmanager
async def running(
    *flags: str, pass_fds: tuple[int, ...] = (), **environment: str
) -> AsyncIterator[tuple[Process, int]]:
    """A router process on a free port, and that port."""
    process = await start("--host", "127.0.0.1", "--port", "0", *flags, pass_fds=pass_fds, **environment)
    assert process.stderr is not None
    try:
        while True:
            line = (await process.stderr.readline()).decode()
            assert line, "the router ended before it listened"
            if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", line):
                break
        async with asyncio.timeout(TEST_SECONDS):
            yield process, int(found[1])
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_sigterm_finishes_requests_in_flight_and_exits_0() -> None:
    gate = asyncio.Semaphore(1)
    async with MockEngine("a", gate=gate, tokens=3) as engine, running("--endpoints", engine.url) as (process, port):
        reader, writer = await raw_post(port, question(stream=True))
        await reader.readuntil(engine.event(0))
        process.send_signal(signal.SIGTERM)
        await eventually(lambda: not accepts(port), "no new connections")
        gate.release()
        gate.release()
        assert (await reader.read()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        writer.close()
        assert await process.wait() == 0


async def test_routers_that_share_an_inherited_socket_take_each_others_place() -> None:
    with socket.create_server(("127.0.0.1", 0)) as shared:
        port, number = shared.getsockname()[1], shared.fileno()
        async with MockEngine("a") as engine, httpx.AsyncClient(trust_env=False, verify=False) as client:
            flags = ("--endpoints", engine.url)
            async with running(*flags, pass_fds=(number,), BLADE_LISTEN_FD=str(number)) as (old, _):
                for _ in range(3):
                    assert (await client.get(f"http://127.0.0.1:{port}/v1/models")).status_code == 200
                old.send_signal(signal.SIGTERM)
                assert await old.wait() == 0
            waits = asyncio.create_task(client.get(f"http://127.0.0.1:{port}/v1/models"))
            async with running(*flags, pass_fds=(number,), BLADE_LISTEN_FD=str(number)):
                assert (await waits).status_code == 200


async def test_an_idle_client_gets_connection_close_before_its_connection_is_closed() -> None:
    async with MockEngine("a") as engine, running("--endpoints", engine.url) as (process, port):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False) as client:
            assert "connection" not in (await client.get("/v1/models")).headers
            process.send_signal(signal.SIGTERM)
            await eventually(lambda: not accepts(port), "no new connections")
            response = await client.get("/v1/models")
            assert (response.status_code, response.headers["connection"]) == (200, "close")
        assert await process.wait() == 0


def test_a_descriptor_that_does_not_listen_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as idle:
        monkeypatch.setenv("BLADE_LISTEN_FD", str(os.dup(idle.fileno())))
        code, _ = fails(capsys, "--port", "0", "--endpoints", "http://127.0.0.1:1")
        assert "not a listening socket" in str(code)
    monkeypatch.setenv("BLADE_LISTEN_FD", "stdin")
    code, error = fails(capsys, "--port", "0", "--endpoints", "http://127.0.0.1:1")
    assert code == 2
    assert "'stdin'" in error


async def test_drain_timeout_bounds_the_end() -> None:
    gate = asyncio.Semaphore(1)
    async with MockEngine("a", gate=gate) as engine:
        async with running("--endpoints", engine.url, "--drain_timeout", "1") as (process, port):
            reader, writer = await raw_post(port, question(stream=True))
            await reader.readuntil(engine.event(0))
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
            writer.close()
            await eventually(lambda: engine.active == 0)


async def test_service_is_watched_in_its_file(tmp_path: Path) -> None:
    async with MockEngine("a") as engine, running("--service", "demo", BLADE_ENDPOINTS_DIR=str(tmp_path)) as (_, port):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False) as client:
            assert (await client.get("/health")).status_code == 503
            (tmp_path / "demo.json").write_text(json.dumps({"endpoints": [{"url": engine.url}]}))
            while (await client.get("/health")).status_code != 200:  # noqa: ASYNC110 - the file is found by polling
                await asyncio.sleep(0.02)
            assert (await client.post("/v1/chat/completions", json=question())).status_code == 200


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def fails(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[object, str]:
    """Exit code (or the message that Python prints as exit code 1) and stderr."""
    with pytest.raises(SystemExit) as caught:
        main(flags)
    return caught.value.code, capsys.readouterr().err


def test_port_in_use_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _ = fails(capsys, "--host", "127.0.0.1", "--port", str(port), "--endpoints", "http://127.0.0.1:1")
    assert isinstance(code, str), "sys.exit with a message: status 1"
    assert code == f"blade_router: cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_admin_port_in_use_is_one_clear_line(workers: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ("--port", "0", "--admin_port", str(port), "--workers", workers)
        code, _ = fails(capsys, *flags, "--endpoints", "http://127.0.0.1:1")
    assert (
        code == f"blade_router: cannot listen on 127.0.0.1:{port}: Address already in use; choose another --admin_port"
    )


async def test_metrics_can_be_read_until_the_last_request_has_ended() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        admin = str(free.getsockname()[1])
    gate = asyncio.Semaphore(1)
    async with MockEngine("a", gate=gate, tokens=2) as engine, httpx.AsyncClient(trust_env=False) as client:
        # a pod's environment; no flag, which an older router would refuse
        async with running("--endpoints", engine.url, BLADE_ADMIN_PORT=admin, BLADE_HOST="127.0.0.1") as (
            process,
            port,
        ):
            reader, writer = await raw_post(port, question(stream=True))
            await reader.readuntil(engine.event(0))
            process.send_signal(signal.SIGTERM)
            await eventually(lambda: not accepts(port), "no new connections")
            text = (await client.get(f"http://127.0.0.1:{admin}/metrics")).text
            assert "blade_router_in_flight_requests 1.0" in text
            assert (await client.get(f"http://127.0.0.1:{admin}/live")).status_code == 200
            gate.release()
            assert (await reader.read()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            writer.close()
            assert await process.wait() == 0


def test_where_the_admin_port_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def address(*flags: str) -> tuple[str, int]:
        options = parse_arguments(["--endpoints", "http://a:1", *flags])
        return options.admin_host, options.admin_port

    for name in ("BLADE_HOST", "BLADE_ADMIN_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert address() == ("127.0.0.1", 9080)
    assert address("--host", "0.0.0.0", "--port", "9") == ("127.0.0.1", 1009)
    assert address("--port", "0") == ("127.0.0.1", 0)
    monkeypatch.setenv("BLADE_HOST", "0.0.0.0")
    assert address("--host", "0.0.0.0", "--port", "8080") == ("0.0.0.0", 9080), "an older operator sets no more"
    monkeypatch.setenv("BLADE_ADMIN_PORT", "7000")
    assert address("--port", "9") == ("0.0.0.0", 7000)
    assert address("--admin_host", "::1", "--admin_port", "8") == ("::1", 8)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--prot", "1"], "did you mean --port?"),
        (["--endpoint", "http://a:1"], "did you mean --endpoints?"),
        ([], "give --endpoints"),
        (["--endpoints", "http://a:1/v1"], "--endpoints: endpoint 0.url"),
        (["--endpoints", "http://a:1", "--port", "80800"], "'80800' is not a port"),
        (["--endpoints", "http://a:1", "--port", "65000"], "--port 65000 + 1000 is no port; give --admin_port"),
        (["--endpoints", "http://a:1", "--policy", "fast"], "invalid choice: 'fast'"),
        (["--endpoints", "http://a:1", "--drain_timeout", "-1"], "not a number of seconds"),
        (["--endpoints", "http://a:1", "--health_interval", "0"], "must be more than 0"),
        (["--endpoints", "http://a:1", "--max_tries", "0"], "at least 1"),
        (["--service", "../x"], "--service: '../x' is no Kubernetes name"),
        (["--service", "demo"], "--service: this is no Kubernetes pod"),
        (["--config_map", "demo"], "--config_map: this is no Kubernetes pod"),
    ],
)
def test_bad_flags(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BLADE_ENDPOINTS_DIR", "KUBERNETES_SERVICE_HOST", "BLADE_ADMIN_PORT"):
        monkeypatch.delenv(name, raising=False)
    code, error = fails(capsys, *flags)
    assert code == 2
    assert says in error
    assert error.count("\n") == 1


def test_missing_config_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _ = fails(capsys, "--host", "127.0.0.1", "--port", "0", "--config", str(tmp_path / "absent.json"))
    assert code == f"blade_router: {tmp_path}/absent.json: no such file"


def test_flags_become_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLADE_ENDPOINTS_DIR", "/run/endpoints")
    options = parse_arguments(["--service", "my-llm", "--port", "9", "--policy", "round-robin", "--log_level", "debug"])
    assert options == Options(
        port=9, admin_port=1009, service=Path("/run/endpoints/my-llm.json"), policy="round-robin", log_level="DEBUG"
    )
    assert parse_arguments(["--endpoints", "http://a:1"]).port == 8080


def test_in_a_pod_the_service_is_watched_through_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    flags = ["--service", "demo", "--config", "/c/router.json", "--config_map", "demo-router"]
    monkeypatch.delenv("BLADE_ENDPOINTS_DIR", raising=False)
    options = parse_arguments(flags)
    assert (options.service, options.config_map) == ("demo", "demo-router")
    assert options.cluster == Cluster("10.0.0.1", 6443)

    monkeypatch.setenv("BLADE_ENDPOINTS_DIR", "/run/endpoints")  # the local runtime, wherever it runs
    options = parse_arguments(flags)
    assert (options.service, options.config_map) == (Path("/run/endpoints/demo.json"), None)
    assert options.cluster is None


def test_a_pod_without_service_account_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sources, "find_cluster", lambda: Cluster("10.0.0.1", 443, tmp_path))
    monkeypatch.delenv("BLADE_ENDPOINTS_DIR", raising=False)
    code, _ = fails(capsys, "--host", "127.0.0.1", "--port", "0", "--service", "demo")
    assert str(code).startswith(f"blade_router: {tmp_path}/namespace: No such file or directory; following Kubernetes")


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for flag in (
        "--host",
        "--port",
        "--admin_port",
        "--endpoints",
        "--config",
        "--service",
        "--config_map",
        "--policy",
        "--log_level",
    ):
        assert flag in text


def test_the_least_budget_of_bodies_is_one_a_router_starts_with() -> None:
    flags = ["--endpoints", "http://a:1", "--body_budget_bytes", str(limits.MIN_BODY_BUDGET_BYTES)]
    assert parse_arguments(flags).body_budget_bytes == limits.MIN_BODY_BUDGET_BYTES
