"""A real server whose engine is two processes answers a picture as transformers does."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_support.image_cases import encode, waves
from engine_support.served_vision import FLAGS, part, save_served, user, words
from engine_support.server_process import running_server
from PIL import Image

COUNT = 8


@pytest.mark.parametrize("flag", ["-tp", "-pp"])
def test_a_picture_and_a_second_question_about_it(tmp_path_factory: pytest.TempPathFactory, flag: str) -> None:
    folder: Path = tmp_path_factory.mktemp("s")
    model = save_served(folder / "m", "qwen2-vl")
    picture = encode(Image.fromarray(waves(40, 56, 3)), "PNG")
    with running_server(folder, model.folder, *FLAGS, flag, "2", engine="real") as server:
        for question in ("What is it?", "And what is behind?"):
            fields = {"temperature": 0, "ignore_eos": True, "max_tokens": COUNT, "return_token_ids": True}
            messages = [user(part(picture), words(question))]
            response = server.post("/v1/chat/completions", messages=messages, **fields)
            assert response.status_code == 200, response.text
            found = response.json()
            prompt = found["prompt_token_ids"]
            assert prompt.count(model.image_token) == model.count(picture)
            assert found["choices"][0]["token_ids"] == model.greedy(prompt, [picture], COUNT)
        assert server.state()["images"]["encoded"] == 1
