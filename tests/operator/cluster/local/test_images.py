"""Fields about images, with the real programs on this machine."""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from engine_support.image_cases import encode, waves
from engine_support.served_vision import part, save_served, user, words
from operator_support.local import pid_of
from operator_support.loop import Loop, loop, manifest
from PIL import Image

EXAMPLE = Path(__file__).parents[4] / "examples" / "qwen2-vl.yaml"
SMALL = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFklEQVR4nGM8IafBwMDAxMDAwMDAAAANcgESOXKF8gAAAABJRU5ErkJggg=="
"""A PNG."""
MIB = 1 << 20


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Loop]:
    with loop(tmp_path, real=True) as each:
        each.environment["OMP_NUM_THREADS"] = "1"
        yield each


def _save_model(folder: Path) -> Path:
    """A small Qwen2-VL with all its files."""
    return save_served(folder, "qwen2-vl").folder


def _pods(loop: Loop, part: str) -> dict[str, int]:
    """The process ids of pods by name."""
    pods = [pod for pod in loop.objects("Pod") if f"-{part}-" in pod["metadata"]["name"]]
    return {pod["metadata"]["name"]: pid_of(pod, part) for pod in pods}


def _flags(pid: int) -> dict[str, str]:
    """The flags with values in a process's command line."""
    words = psutil.Process(pid).cmdline()
    return {word.removeprefix("--"): value for word, value in itertools.pairwise(words) if word.startswith("--")}


def _names(loop: Loop, part: str) -> set[str]:
    return {name for pod in loop.objects("Pod") if f"-{part}-" in (name := pod["metadata"]["name"])}


def _vision_bytes(loop: Loop) -> int:
    """What images and their tower take, by the check of the newest engine; 0 where it says nothing of them."""
    [pod] = [each for each in loop.service("qwen")["status"]["preflight"] if each["pod"] in _names(loop, "engine")]
    [detail] = [item["detail"] for item in pod["items"] if item["name"] == "check_memory_fit"]
    found = re.search(r"vision tower and images (\d+) bytes", detail)
    return int(found[1]) if found else 0


def _ask(url: str, *parts: dict[str, Any]) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}], "max_tokens": 4}
    return httpx.post(f"{url}/chat/completions", json=body, timeout=60, trust_env=False)


def _image(text: str) -> dict[str, Any]:
    """A content part with a PNG in base64."""
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}


@pytest.mark.timeout(300)
def test_limits_of_images_reach_engine_check_and_router(running: Loop, tmp_path: Path) -> None:
    model = _save_model(tmp_path / "model")
    spec: dict[str, Any] = {
        "engine": {
            "dtype": "float32",
            "kvCacheBytes": "16Mi",
            "vision": {"maxImagesPerRequest": 5, "encoderCacheBytes": "8Mi"},
        },
        "router": {"maxImages": 2, "maxPartBytes": "1Mi", "maxBodyBytes": "3Mi"},
    }
    running.start("-f", str(manifest(tmp_path, model=model, **spec)))
    running.until(lambda: running.ready("qwen"), 120)
    [engine] = _pods(running, "engine").items()
    flags = _flags(engine[1])
    assert (flags["max_images_per_request"], flags["encoder_cache_bytes"]) == ("5", str(8 * MIB))
    assert flags["max_body_bytes"] == str(3 * MIB)
    small = _vision_bytes(running)
    assert small > 8 * MIB

    # The router refuses what is over its limits before an engine has it.
    url = running.service("qwen")["status"]["url"]
    refused = _ask(url, *[_image(SMALL)] * 3)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "too_many_images")
    refused = _ask(url, _image(base64.b64encode(bytes(MIB)).decode()))
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "part_too_large")
    refused = _ask(url, *[{"type": "text", "text": "x" * (MIB * 15 // 16)}] * 4)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_large")
    assert _ask(url).status_code == _ask(url, *[_image(SMALL)] * 2).status_code == 200

    # Other limits are other routers; the engine goes on.
    spec["router"] = {"maxImages": 3, "maxBodyBytes": "3Mi"}
    before = _names(running, "router")
    running.command("apply", "-f", str(manifest(tmp_path, model=model, **spec)))
    running.until(lambda: not before & _names(running, "router") and running.ready("qwen"), 60)
    refused = _ask(url, *[_image(SMALL)] * 4)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "too_many_images")
    assert [*_pods(running, "engine").items()] == [engine]

    # Another cache is another engine, for which the check has planned.
    spec["engine"]["vision"]["encoderCacheBytes"] = "9Mi"
    running.command("apply", "-f", str(manifest(tmp_path, model=model, **spec)))
    running.until(lambda: engine[0] not in _names(running, "engine") and running.ready("qwen"), 120)
    assert _vision_bytes(running) == small + MIB
    assert running.interrupt() == 0


@pytest.mark.timeout(300)
def test_an_engine_without_its_tower_takes_no_image(running: Loop, tmp_path: Path) -> None:
    engine = {"dtype": "float32", "kvCacheBytes": "16Mi", "vision": {"enabled": False}}
    running.start("-f", str(manifest(tmp_path, model=_save_model(tmp_path / "model"), engine=engine)))
    running.until(lambda: running.ready("qwen"), 120)
    assert _vision_bytes(running) == 0
    url = running.service("qwen")["status"]["url"]
    assert _ask(url).status_code == 200
    refused = _ask(url, _image(SMALL))
    assert refused.status_code == 400
    assert "--with_visual false" in refused.json()["error"]["message"]
    assert running.interrupt() == 0


@pytest.mark.timeout(300)
def test_the_example_answers_questions_about_a_picture(running: Loop, tmp_path: Path) -> None:
    """With a small model in a folder instead of the published one from the hub."""
    model = save_served(tmp_path / "model", "qwen2-vl")
    spec = yaml.safe_load(EXAMPLE.read_text())["spec"]
    assert spec.pop("model")["uri"] == "hf://Qwen/Qwen2-VL-2B-Instruct"
    spec["engine"] |= {"dtype": "float32", "contextLength": 512, "kvCacheBytes": "16Mi"}
    running.start("-f", str(manifest(tmp_path, model=model.folder, **spec)))
    running.until(lambda: running.ready("qwen"), 120)
    url = running.service("qwen")["status"]["url"]
    picture = encode(Image.fromarray(waves(40, 56, 3)), "PNG")

    def ask(question: str) -> Any:
        body = {
            "messages": [user(words("Look at this picture: "), part(picture), words(question))],
            "max_tokens": 4,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        response = httpx.post(f"{url}/chat/completions", json=body, timeout=60, trust_env=False)
        assert response.status_code == 200, response.text
        return response.json()

    first, second = ask("what is it?"), ask("where is it?")
    turn = "<|im_start|>user\nLook at this picture: <|vision_start|><|image_pad|><|vision_end|>what is it?<|im_end|>\n"
    prompt = model.prompt(f"{turn}<|im_start|>assistant\n", [picture])
    assert first["choices"][0]["token_ids"] == model.greedy(prompt, [picture], 4)
    assert first["usage"]["prompt_tokens"] == len(prompt)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= model.count(picture) > 4
    assert running.interrupt() == 0
