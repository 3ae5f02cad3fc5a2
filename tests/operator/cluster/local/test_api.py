"""Fields that shape requests and responses, with the real programs on this machine."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from operator_support.local import pid_of
from operator_support.loop import Loop, loop, manifest

from blade_operator.model.objects import Object

MODEL = Path(__file__).parents[4] / "examples" / "demo_model" / "model"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{{ tools or '' }}<|im_start|>assistant\n{# 'quoted' \"twice\" \\n é #}Well:"
)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Loop]:
    with loop(tmp_path, real=True) as each:
        each.environment["OMP_NUM_THREADS"] = "1"
        yield each


def _engines(loop: Loop) -> dict[str, Object]:
    """Engine pods by name."""
    pods = {pod["metadata"]["name"]: pod for pod in loop.objects("Pod")}
    return {name: pod for name, pod in pods.items() if "engine" in name}


def _flags(loop: Loop) -> dict[str, str]:
    """Flag → value of the engine's own command line."""
    [pod] = _engines(loop).values()
    words = psutil.Process(pid_of(pod)).cmdline()
    pairs = [(word, after) for word, after in itertools.pairwise([*words, ""]) if word.startswith("--")]
    return {word.removeprefix("--").partition("=")[0]: word.partition("=")[2] or after for word, after in pairs}


def _post(url: str, **body: Any) -> httpx.Response:
    return httpx.post(url, json=body, timeout=60, trust_env=False)


@pytest.mark.timeout(300)
def test_a_chat_template_and_parsers_reach_the_engine(running: Loop, tmp_path: Path) -> None:
    engine: Object = {"chatTemplate": {"inline": TEMPLATE}, "toolCallParser": "hermes", "reasoningParser": "qwen3"}
    spec = manifest(tmp_path, model=MODEL, engine=engine | {"jsonWarmup": True, "apiServers": 2})
    running.start("-f", str(spec))
    running.until(lambda: running.ready("qwen"), 120)
    flags = _flags(running)
    assert Path(flags["chat_template"]).read_text() == TEMPLATE
    assert (flags["tool_call_parser"], flags["reasoning_parser"]) == ("hermes", "qwen3")
    assert flags["api_server_count"] == "2"
    assert flags["enable_json_warmup"] == "true"
    assert "task" not in flags

    # A chat has as many prompt tokens as its text by this template.
    url = running.service("qwen")["status"]["url"]
    rendered = "<|im_start|>user\nWhat does len do?<|im_end|>\n<|im_start|>assistant\nWell:"
    chat = _post(f"{url}/chat/completions", messages=[{"role": "user", "content": "What does len do?"}], max_tokens=4)
    text = _post(f"{url}/completions", prompt=rendered, max_tokens=4)
    assert chat.json()["usage"]["prompt_tokens"] == text.json()["usage"]["prompt_tokens"]

    # Another text is another revision, whose engine reads that one.
    [before] = _engines(running)
    del engine["toolCallParser"]  # the check would warn: that one has no place for tools
    engine["chatTemplate"] = {"configMapKeyRef": {"name": "templates", "key": "short.jinja"}}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "templates"}}
    objects = tmp_path / "templates.yaml"
    objects.write_text(json.dumps(config | {"data": {"short.jinja": "{{ messages[0].content }}"}}))
    running.command("apply", "-f", str(objects), "-f", str(manifest(tmp_path, model=MODEL, engine=engine)))
    running.until(lambda: before not in _engines(running) and running.ready("qwen"), 120)
    chat = _post(f"{url}/chat/completions", messages=[{"role": "user", "content": "What does len do?"}], max_tokens=4)
    text = _post(f"{url}/completions", prompt="What does len do?", max_tokens=4)
    assert chat.json()["usage"]["prompt_tokens"] == text.json()["usage"]["prompt_tokens"]
    assert running.interrupt() == 0


@pytest.mark.timeout(300)
def test_a_service_of_embeddings_is_served_through_its_router(running: Loop, tmp_path: Path) -> None:
    engine = {"task": "embed", "pooling": "mean"}
    running.start("-f", str(manifest(tmp_path, model=MODEL, engine=engine)), "--ask", "What does len do?")
    running.until(lambda: " numbers for " in running.said(), 120)  # in place of a chat's first response
    assert "/v1/embeddings -H" in running.said()
    flags = _flags(running)
    assert (flags["task"], flags["pooling"]) == ("embed", "mean")
    url = running.service("qwen")["status"]["url"]
    size = json.loads((MODEL / "config.json").read_text())["hidden_size"]
    texts = ["What does len do?", "What does sorted do?"]

    def vectors(**body: Any) -> list[list[float]]:
        response = _post(f"{url}/embeddings", input=texts, **body)
        assert response.status_code == 200, response.text
        return [item["embedding"] for item in response.json()["data"]]

    found = vectors(model="qwen")
    assert [len(vector) for vector in found] == [size, size]
    assert found == vectors(pooling="mean") != vectors(pooling="last")
    assert _post(f"{url.removesuffix('/v1')}/tokenize", prompt="x").status_code == 200
    assert "/v1/embeddings" in httpx.get(f"{url.removesuffix('/v1')}/openapi.json", trust_env=False).json()["paths"]
    refused = _post(f"{url}/chat/completions", messages=[{"role": "user", "content": "x"}], stream=True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "task_not_served")
    assert running.interrupt() == 0
