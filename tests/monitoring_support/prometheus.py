"""A real Prometheus and its promtool, as Debian's package ``prometheus`` brings them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml

INTERVAL: Final = "500ms"
"""Between scrapes."""


def program(name: str) -> str:
    """The path of ``prometheus`` or ``promtool``. Where it is absent, the test is skipped; in CI it fails."""
    found = shutil.which(name)
    if found is None:
        message = f"{name} is not installed; install it with `make monitoring-deps`"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return found


def promtool(*arguments: str, text: str = "") -> str:
    """What it says; fails where it finds fault."""
    done = subprocess.run([program("promtool"), *arguments], input=text, capture_output=True, text=True, timeout=60)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


@dataclass(frozen=True, slots=True)
class Target:
    """Something to scrape. ``labels``: those that Prometheus' operator would attach, but for ``dropped``."""

    port: int
    labels: Mapping[str, str]
    dropped: Sequence[str] = ()


@dataclass(slots=True)
class Prometheus:
    """One that runs. Queries are evaluated at ``time``, or now."""

    client: httpx.Client
    time: float | None = field(default=None)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector. Fails on an error in the expression."""
        now = {} if self.time is None else {"time": str(self.time)}
        response = self.client.get("/api/v1/query", params={"query": expression, **now}).json()
        assert response["status"] == "success", f"{expression}: {response.get('error')}"
        data = response["data"]
        assert data["resultType"] == "vector", expression
        found: list[dict[str, Any]] = data["result"]
        return found

    def has_numbers(self, expression: str) -> bool:
        """Whether any series of it is a number."""
        return any(each["value"][1] != "NaN" for each in self.query(expression))

    def rules(self) -> list[dict[str, Any]]:
        """Every rule that it has loaded, with its health."""
        groups = self.client.get("/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


@contextlib.contextmanager
def scraping(folder: Path, targets: Mapping[str, Target], rules: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes these, by the name of their job, and evaluates ``rules``."""
    configuration = {
        "global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {
                "job_name": job,
                "relabel_configs": [{"action": "labeldrop", "regex": label} for label in target.dropped],
                "static_configs": [{"targets": [f"127.0.0.1:{target.port}"], "labels": dict(target.labels)}],
            }
            for job, target in targets.items()
        ],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(configuration))
    port = _free_port()
    command = [
        program("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
            _wait(client, process, log)
            yield Prometheus(client)
    finally:
        process.terminate()
        process.wait(30)


def _wait(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if client.get("/-/ready").status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"Prometheus did not start:\n{log.read_text()}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def rule_tests(cases: list[dict[str, Any]], rules: Path) -> str:
    """A file for ``promtool test rules``."""
    return json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": cases})
