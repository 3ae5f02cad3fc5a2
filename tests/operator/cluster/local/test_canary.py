"""A canary on the local runtime: the real operator, the real router, and engines that fail now and then."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from operator_support.loop import Loop, loop, manifest

CANARY = {"steps": [20, 50], "interval": "2s", "minRequests": 250}


class Load:
    """Completions without a pause from three clients, and what became of each."""

    def __init__(self, url: str) -> None:
        self.results: Counter[str] = Counter()
        self._stop = threading.Event()
        self._url = f"{url}/completions"
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(3)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        with httpx.Client(trust_env=False, timeout=60) as client:
            while not self._stop.wait(0.005):
                try:
                    response = client.post(self._url, json={"model": "qwen", "prompt": "is it so?", "temperature": 0})
                    self.results[str(response.status_code)] += 1
                except httpx.HTTPError as error:
                    self.results[repr(error)] += 1

    def stop(self) -> Counter[str]:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.results


def apply(running: Loop, folder: Path, canary: dict[str, Any] | None = None, **env: str) -> None:
    """Another revision: engines with this environment."""
    engine = {"env": [{"name": name, "value": value} for name, value in env.items()]}
    path = manifest(folder, engine=engine, replicas=2, rollout={"canary": canary or CANARY, "drainTimeout": "5s"})
    running.command("apply", "-f", str(path))


def engines(running: Loop) -> set[str]:
    """Revisions of the engines that are there."""
    return {
        pod["metadata"]["labels"]["serving.bladellm.io/revision"]
        for pod in running.objects("Pod")
        if "-engine-" in pod["metadata"]["name"]
    }


@pytest.mark.soak
def test_a_bad_canary_is_aborted_and_a_good_one_gets_everything_and_nobody_sees_an_error(tmp_path: Path) -> None:
    with loop(tmp_path, real_router=True) as running:
        start = {"replicas": 2, "rollout": {"canary": CANARY, "drainTimeout": "5s"}}
        running.start("-f", str(manifest(tmp_path, **start)))
        running.until(lambda: running.ready("qwen", 2))

        def status() -> dict[str, Any]:
            found: dict[str, Any] = running.service("qwen")["status"]
            return found

        stable = status()["revision"]["current"]
        load = Load(status()["url"])
        try:
            apply(running, tmp_path, FAKE_FAILS="20")
            running.until(lambda: status().get("canary", {}).get("phase") == "Aborted", 90)
            bad = status()["canary"]["revision"]
            running.until(lambda: engines(running) == {stable}, 60)
            reason = next(each["message"] for each in status()["conditions"] if each["type"] == "RolloutAborted")
            assert "requests failed" in reason

            apply(running, tmp_path, FAKE_FAILS="0")
            running.until(lambda: status()["revision"]["current"] not in (stable, bad))
            good = status()["revision"]["current"]
            running.until(lambda: engines(running) == {good} and running.ready("qwen", 2), 120)
            running.until(lambda: "canary" not in status())
        finally:
            results = load.stop()
    assert set(results) == {"200"}, "what the canary fails, the stable revision answers"


@pytest.mark.soak
def test_a_shadow_that_fails_gets_no_request_and_one_that_does_not_goes_on(tmp_path: Path) -> None:
    shadowed = {**CANARY, "shadow": {"share": 50, "minRequests": 300}}
    with loop(tmp_path, real_router=True) as running:
        start = {"replicas": 2, "rollout": {"canary": shadowed, "drainTimeout": "5s"}}
        running.start("-f", str(manifest(tmp_path, **start)))
        running.until(lambda: running.ready("qwen", 2))

        def status() -> dict[str, Any]:
            found: dict[str, Any] = running.service("qwen")["status"]
            return found

        def phase() -> str:
            return str(status().get("canary", {}).get("phase", ""))

        def message(kind: str) -> str:
            return next((str(each["message"]) for each in status()["conditions"] if each["type"] == kind), "")

        stable = status()["revision"]["current"]
        load = Load(status()["url"])
        try:
            apply(running, tmp_path, shadowed, FAKE_FAILS="4")
            running.until(lambda: phase() == "Aborted", 90)
            assert message("RolloutAborted").startswith("as a shadow, before it got any request: ")
            running.until(lambda: engines(running) == {stable}, 60)

            apply(running, tmp_path, shadowed, FAKE_FAILS="0")
            running.until(lambda: phase() == "Shadowing", 60)
            running.until(lambda: "have the same text" in message("Progressing") or phase() == "Running", 60)
            running.until(lambda: phase() == "Running", 90)
            good = status()["canary"]["revision"]
            running.until(lambda: engines(running) == {good} and running.ready("qwen", 2), 120)
        finally:
            results = load.stop()
    assert set(results) == {"200"}
