"""Adapters of a service on the local runtime: real engines list what is declared, and change it without a restart."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import yaml
from operator_support.loop import Loop, loop, manifest

from blade_protocol.labels import ADAPTER_KIND, API_VERSION

EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL = EXAMPLES / "demo_model" / "model"
POLITE = {"name": "polite", "uri": f"file://{EXAMPLES}/lora/adapter"}
PIRATE = {"name": "pirate", "uri": f"file://{EXAMPLES}/demo_model/adapter", "replicas": 1}
BROKEN = {"name": "broken", "uri": "file:///nowhere", "replicas": 1}
ENGINE = {"dtype": "float32", "kvCacheBytes": "64Mi", "lora": {"maxGPU": 4, "maxCPU": 16}}


def _write(folder: Path, *adapters: dict[str, Any]) -> str:
    path = manifest(
        folder, "lora", model=MODEL, replicas=2, engine=ENGINE, adapters=list(adapters), check={"mode": "Off"}
    )
    return str(path)


def _adapters(running: Loop) -> dict[str, dict[str, Any]]:
    entries = running.service("lora").get("status", {}).get("adapters", [])
    return {entry["name"]: entry for entry in entries}


def _loaded(running: Loop) -> dict[str, int]:
    return {name: entry["loaded"] for name, entry in _adapters(running).items()}


def test_adapters_are_where_they_are_to_be_and_change_without_a_restart(tmp_path: Path) -> None:
    with loop(tmp_path, real=True) as running:
        running.start("-f", _write(tmp_path, POLITE, PIRATE, BROKEN))
        running.until(lambda: running.ready("lora", 2), 120)
        running.until(lambda: _loaded(running) == {"polite": 2, "pirate": 1, "broken": 0}, 60)
        running.until(lambda: "adapter folder /nowhere does not exist" in json.dumps(_adapters(running)), 60)
        assert running.condition("lora", "AdaptersReady") == "False"
        assert running.ready("lora", 2), "a broken adapter takes no base traffic away"
        pods = {pod["metadata"]["name"] for pod in running.objects("Pod")}
        for name in ("polite", "pirate"):
            assert _answer(running, name)
        running.command("apply", "-f", _write(tmp_path, {**PIRATE, "name": "captain"}, POLITE))
        running.until(lambda: _loaded(running) == {"captain": 1, "polite": 2}, 60)
        running.until(lambda: running.condition("lora", "AdaptersReady") == "True", 60)
        assert _answer(running, "captain")
        assert {pod["metadata"]["name"] for pod in running.objects("Pod")} == pods


def test_two_adapters_share_the_requests_of_one_model(tmp_path: Path) -> None:
    versions = [{**POLITE, "model": "tone", "weight": 50}, {**PIRATE, "model": "tone", "weight": 50}]
    with loop(tmp_path, real=True) as running:
        running.start("-f", _write(tmp_path, *versions, BROKEN))
        running.until(lambda: running.ready("lora", 2), 120)
        running.until(lambda: _loaded(running) == {"polite": 2, "pirate": 1, "broken": 0}, 60)
        for name in ("polite", "pirate"):
            assert _answer(running, name)
        url = f"http://127.0.0.1:{running.port}/v1/completions"
        body = {"model": "tone", "prompt": "What does len do?", "max_tokens": 4}
        answers = [httpx.post(url, json=body, timeout=20).json()["model"] for _ in range(4)]
        assert sorted(answers) == ["pirate", "pirate", "polite", "polite"]
        refused = httpx.post(url, json=body | {"model": "broken"}, timeout=20)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "adapter_not_loaded")
        assert "retry-after" in refused.headers


def test_a_lora_adapter_comes_and_goes_without_touching_the_service(tmp_path: Path) -> None:
    path = manifest(tmp_path, "lora", model=MODEL, engine=ENGINE, adapterSelector={}, check={"mode": "Off"})
    with loop(tmp_path, real=True) as running:
        running.start("-f", str(path))
        running.until(lambda: running.ready("lora", 1), 120)
        generation = running.service("lora")["metadata"]["generation"]
        polite, captain = (
            _lora_adapter(tmp_path, "polite", POLITE),
            _lora_adapter(tmp_path, "captain", PIRATE, model="sea"),
        )
        assert running.command("apply", "-f", polite) == "loraadapter.serving.bladellm.io/polite created\n"
        running.command("apply", "-f", captain)
        running.until(lambda: _loaded(running) == {"polite": 1, "captain": 1}, 60)
        running.until(lambda: _is_known(running, "polite") and _is_known(running, "sea"), 60)
        for name in ("polite", "sea"):
            assert _answer(running, name)
        running.until(lambda: "True Loaded 1/1" in " ".join(running.command("get", "lora", "polite").split()), 20)
        assert running.service("lora")["metadata"]["generation"] == generation
        assert "polite" in running.command("describe", "lora").partition("Adapters:")[2]
        running.command("delete", "-f", polite)
        running.until(lambda: _loaded(running) == {"captain": 1}, 60)
        wrong = tmp_path / "wrong.yaml"
        wrong.write_text(Path(captain).read_text().replace("uri:", "url:"))
        said = running.command("apply", "-f", str(wrong), code=1)
        assert 'the LoRAAdapter "captain" is invalid' in said
        assert "spec.url: unknown field; did you mean uri?" in said


def _is_known(running: Loop, model: str) -> bool:
    """Whether the router has heard of ``model``: its configuration reaches it a moment after the engines have it."""
    body = {"model": model, "prompt": "What does len do?", "max_tokens": 1}
    return httpx.post(f"http://127.0.0.1:{running.port}/v1/completions", json=body, timeout=20).status_code != 404


def _lora_adapter(folder: Path, name: str, adapter: dict[str, Any], **spec: Any) -> str:
    obj = {"apiVersion": API_VERSION, "kind": ADAPTER_KIND, "metadata": {"name": name}}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**obj, "spec": {"uri": adapter["uri"], **spec}}))
    return str(path)


def _answer(running: Loop, model: str) -> str:
    """What the router's port answers for ``model``, once it knows which engines have it."""
    url = f"http://127.0.0.1:{running.port}/v1/chat/completions"
    messages = [{"role": "user", "content": "What does len do?"}]
    body = {"model": model, "messages": messages, "max_tokens": 4, "temperature": 0}
    deadline = time.monotonic() + 20
    while (response := httpx.post(url, json=body, timeout=20)).status_code != 200:
        assert time.monotonic() < deadline, response.text
        assert response.json()["error"]["code"] == "adapter_not_loaded", "a declared adapter is no unknown model"
        time.sleep(0.2)
    text: str = response.json()["choices"][0]["message"]["content"]
    return text
