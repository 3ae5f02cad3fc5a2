"""Anthropic's own client: messages, streams, a coding agent's loop, its tool runner, its exceptions, pictures."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from engine_support.anthropic_script import PICTURES, run_program, write_agent_model
from engine_support.image_cases import encode, waves
from engine_support.served_vision import FLAGS, part, save_served, user, words
from engine_support.server_process import running_server
from PIL import Image


@pytest.mark.clients
def test_the_official_client(tmp_path: Path) -> None:
    with running_server(tmp_path, write_agent_model(tmp_path / "tools"), engine="scripted") as server:
        found = run_program(server.url)
    assert (found.returncode, found.stdout) == (0, "all well\n"), found.stderr


@pytest.mark.clients
def test_it_sends_pictures(tmp_path: Path) -> None:
    """They are answered as those of a chat."""
    model = save_served(tmp_path / "tiny-vision", "qwen2-vl")
    picture = encode(Image.fromarray(waves(40, 56, 3)), "PNG")
    question, count = "what is it?", 8
    with running_server(tmp_path / "server", model.folder, *FLAGS, engine="real") as server:
        greedy = {"temperature": 0, "ignore_eos": True, "max_tokens": count}
        chat = server.post("/v1/chat/completions", messages=[user(part(picture), words(question))], **greedy).json()
        case = {
            "model": "tiny-vision",
            "question": question,
            "max_tokens": count,
            "picture": base64.b64encode(picture).decode(),
            "broken": base64.b64encode(picture[: len(picture) // 2]).decode(),
            "said": chat["choices"][0]["message"]["content"],
            "prompt_tokens": chat["usage"]["prompt_tokens"],
        }
        (tmp_path / "case.json").write_text(json.dumps(case), encoding="utf-8")
        found = run_program(server.url, program=PICTURES, CASE=str(tmp_path / "case.json"))
    assert (found.returncode, found.stdout) == (0, "all well\n"), found.stderr
