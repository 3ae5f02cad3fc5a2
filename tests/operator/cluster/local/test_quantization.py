"""Quantisation with the real programs: weights while loading, and by a Job whose folder a service then serves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from operator_support.loop import Loop, loop

from blade_operator.model.objects import Object
from blade_operator.spec.quantity import parse_bytes

MODEL = Path(__file__).parents[4] / "examples" / "demo_model" / "model"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Loop]:
    with loop(tmp_path, real=True) as each:
        each.environment["OMP_NUM_THREADS"] = "1"
        yield each


def _apply(running: Loop, model: dict[str, Any]) -> str:
    path = running.folder / "service.yaml"
    service = {
        "apiVersion": "serving.bladellm.io/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": "demo"},
        "spec": {"model": model},
    }
    path.write_text(json.dumps(service))
    return running.command("apply", "-f", str(path))


def _answer(running: Loop) -> str:
    url = running.service("demo")["status"]["url"]
    body = {"messages": [{"role": "user", "content": "What does len do?"}], "max_tokens": 24, "temperature": 0}
    response = httpx.post(f"{url}/chat/completions", json=body, timeout=60, trust_env=False)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def _engine(running: Loop) -> Object:
    [pod] = [each for each in running.objects("Pod") if "demo-engine" in each["metadata"]["name"]]
    return pod


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_weights_are_quantised_while_they_are_loaded_and_so_is_the_kv_cache(running: Loop) -> None:
    running.start()
    plans = []
    for quantization in ({"method": "int8"}, {"method": "int", "bits": 4, "kvCache": "int8"}):
        _apply(running, {"uri": f"file://{MODEL}", "quantization": quantization})
        generation = running.service("demo")["metadata"]["generation"]
        running.until(
            lambda generation=generation: (  # type: ignore[misc]
                running.ready("demo")
                and running.service("demo")["status"]["observedGeneration"] == generation
                and running.condition("demo", "Progressing") == "False"
            ),
            180,
        )
        engine = _engine(running)
        for container in (engine["spec"]["initContainers"][0], engine["spec"]["containers"][0]):
            words = container["args"]
            assert words[words.index("--quant") + 1] == f"int{quantization.get('bits', 8)}"
            assert ("--kv_cache_quant" in words) == ("kvCache" in quantization)
        assert "number of items" in _answer(running)
        plans.append(running.until(lambda: _measured(running), 60))
    assert parse_bytes(plans[1]["weights"]) < parse_bytes(plans[0]["weights"])
    a_token = [parse_bytes(plan["kvCache"]) / plan["kvTokens"] for plan in plans]
    assert a_token[1] < 0.6 * a_token[0]


def _measured(running: Loop) -> Object | None:
    """Where the memory of engines of the current revision goes, as they measured it."""
    status = running.service("demo")["status"]
    fit: Object = status.get("fit", {})
    return fit if fit.get("source") == "measured" and fit["revision"] == status["revision"]["current"] else None


@pytest.mark.timeout(600)
def test_a_job_quantises_a_model_and_a_service_serves_its_folder(running: Loop) -> None:
    running.start()
    said = running.command(
        *("quantize", "demo-w4", "--model", str(MODEL), "--output_dir", "pvc://models/demo-w4", "--apply"),
        *("--quant_algo", "minmax", "--bit", "4", "--block_wise_quant", "--block_size", "32"),
    )
    assert said.startswith("job.batch/demo-w4 created\n")
    running.until(lambda: "Complete" in running.command("get", "jobs"), 120)
    [pod] = running.objects("Pod")
    [status] = pod["status"]["containerStatuses"]
    assert re.fullmatch(
        r"[\d.]+ MB → [\d.]+ MB, 4\.50 bits a quantised weight", status["state"]["terminated"]["message"]
    )
    assert "times smaller" in running.command("logs", "job/demo-w4")
    folder = running.layout.claims / "default" / "models" / "demo-w4"
    assert json.loads((folder / "config.json").read_text())["quantization_config"]["format"] == "pack-quantized"

    _apply(running, {"uri": "pvc://models/demo-w4"})
    running.until(lambda: running.ready("demo"), 180)
    assert "number of items" in _answer(running)
    assert running.interrupt() == 0
    assert (folder / "config.json").exists()
