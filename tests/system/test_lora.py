"""examples/lora.yaml from `blade_operator local up` to a client: base and adapters, each as its merged model, while the
set of adapters changes and a broken one is declared."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from engine_support.tiny_models import reference_greedy
from examples.demo_model.measure import load, prompt_ids
from examples.lora.merge import merged
from operator_support.loop import Loop, loop
from transformers import AutoTokenizer

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "examples" / "lora.yaml").read_text(encoding="utf-8").replace("file:///opt/bladellm/", f"file://{ROOT}/")
BASE = ROOT / "examples" / "demo_model" / "model"
ADAPTERS = {"polite": ROOT / "examples" / "lora" / "adapter", "pirate": ROOT / "examples" / "demo_model" / "adapter"}
QUESTIONS = ["What does len do?", "What is the json module for?", "What does abs do?"]
TOKENS = 32


@pytest.fixture(scope="module")
def expected() -> dict[str, list[list[str]]]:
    """The tokens of each question, by the base and by each merged model, computed by transformers."""
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    models = {"demo": load(BASE), **{name: merged(BASE, folder) for name, folder in ADAPTERS.items()}}
    prompts = [prompt_ids(tokenizer, question) for question in QUESTIONS]
    return {
        name: [[f"token_id:{token}" for token in reference_greedy(model, prompt, TOKENS)] for prompt in prompts]
        for name, model in models.items()
    }


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    folder = tmp_path_factory.mktemp("loop")
    (folder / "lora.yaml").write_text(TEXT, encoding="utf-8")
    with loop(folder, real=True) as each:
        each.environment["OMP_NUM_THREADS"] = "1"
        each.start("-f", str(folder / "lora.yaml"))
        each.until(lambda: each.ready("lora", 2), 120)
        each.until(lambda: each.condition("lora", "AdaptersReady") == "True", 60)
        yield each


def chat(loop: Loop, model: str, question: str) -> httpx.Response:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": question}], "max_tokens": TOKENS, "temperature": 0}
    body |= {"ignore_eos": True, "logprobs": True, "return_tokens_as_token_ids": True, "model": model}
    url = f"{loop.service('lora')['status']['url']}/chat/completions"
    return httpx.post(url, json=body, timeout=60)


def tokens(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return [each["token"] for each in response.json()["choices"][0]["logprobs"]["content"]]


def check(loop: Loop, expected: dict[str, list[list[str]]], names: list[str]) -> None:
    for name in names:
        found = [tokens(chat(loop, name, question)) for question in QUESTIONS]
        assert found == expected[name], name


def apply(loop: Loop, change: Any) -> None:
    manifest = yaml.safe_load(TEXT)
    change(manifest["spec"]["adapters"])
    path = loop.folder / "changed.yaml"
    path.write_text(yaml.safe_dump(manifest), encoding="utf-8")
    loop.command("apply", "-f", str(path))


def adapters(loop: Loop) -> dict[str, dict[str, Any]]:
    """``status.adapters`` by name."""
    return {each["name"]: each for each in loop.service("lora")["status"].get("adapters", [])}


def listed(loop: Loop) -> set[str]:
    """The names in ``/v1/models``."""
    url = f"{loop.service('lora')['status']['url']}/models"
    return {each["id"] for each in httpx.get(url, timeout=10).json()["data"]}


def test_base_and_adapters_answer_as_merged(running: Loop, expected: dict[str, list[list[str]]]) -> None:
    check(running, expected, ["demo", "polite", "pirate"])
    assert listed(running) == {"demo", "polite", "pirate"}
    found = adapters(running)
    assert {name: (each["desired"], each["loaded"]) for name, each in found.items()} == {
        "polite": (2, 2),
        "pirate": (1, 1),
    }
    assert len(found["pirate"]["pods"]) == 1
    assert all(each["bytes"] > 0 for each in found.values())


def test_the_set_changes_without_a_restart(running: Loop, expected: dict[str, list[list[str]]]) -> None:
    before = running.processes()
    apply(running, lambda adapters: adapters.pop())
    # A router that still has the adapter in its configuration says 503 of one that no engine has any more.
    running.until(lambda: chat(running, "pirate", QUESTIONS[0]).status_code == 404, 60)
    running.until(lambda: "pirate" not in listed(running), 60)
    check(running, expected, ["demo", "polite"])
    apply(running, lambda adapters: adapters[1].pop("replicas"))
    running.until(lambda: adapters(running).get("pirate", {}).get("loaded") == 2, 60)
    check(running, expected, ["demo", "polite", "pirate"])
    assert running.processes() == before


def test_a_broken_adapter_disturbs_nobody(running: Loop, expected: dict[str, list[list[str]]], tmp_path: Path) -> None:
    def add(adapters: list[dict[str, Any]]) -> None:
        adapters.append({"name": "broken", "uri": f"file://{tmp_path}/nothing"})

    before = running.processes()
    apply(running, add)
    running.until(lambda: running.condition("lora", "AdaptersReady") == "False", 60)
    running.until(lambda: "does not exist" in adapters(running)["broken"]["reason"], 60)
    assert running.condition("lora", "Ready") == "True"
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        check(running, expected, ["demo", "polite"])
    assert chat(running, "broken", QUESTIONS[0]).status_code in (404, 503)
    apply(running, lambda adapters: None)
    running.until(lambda: running.condition("lora", "AdaptersReady") == "True", 60)
    assert running.processes() == before
