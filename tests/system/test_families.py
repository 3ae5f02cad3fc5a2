"""The manifests of examples/families, each with the model it is for, from `blade_operator local up` to a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_support.tiny_models import load_reference, reference_greedy
from examples.families.make import FAMILIES, FOLDER, make
from openai import BadRequestError, OpenAI
from operator_support.loop import Loop, loop
from transformers import AutoTokenizer

MANIFESTS = Path(__file__).parents[2] / "examples" / "families"
TOKENS = 24
PROMPT = "hello there, the quick brown fox jumps over the lazy dog"
"""More tokens than Mistral's window."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        make(family, folder / family)
    return folder


@pytest.fixture(scope="module")
def running(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    folder = tmp_path_factory.mktemp("loop")
    words: list[str] = []
    for family in FAMILIES:
        text = (MANIFESTS / f"{family}.yaml").read_text()
        assert f"file://{FOLDER}/{family}\n" in text
        (folder / f"{family}.yaml").write_text(text.replace(str(FOLDER), str(models)))
        words += ["-f", str(folder / f"{family}.yaml")]
    with loop(folder, real=True) as each:
        each.environment["OMP_NUM_THREADS"] = "1"
        each.start(*words)
        each.until(lambda: all(each.ready(family) for family in FAMILIES), 200)
        yield each


def test_there_is_a_manifest_for_each_family() -> None:
    assert {path.stem for path in MANIFESTS.glob("*.yaml")} == set(FAMILIES)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_family_answers_through_the_router_as_transformers_does(running: Loop, models: Path, family: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(models / family)
    reference = load_reference(models / family)

    def expected(prompt: list[int]) -> list[str]:
        return [f"token_id:{token}" for token in reference_greedy(reference, prompt, TOKENS)]

    options: dict[str, Any] = {
        "model": family,
        "temperature": 0,
        "extra_body": {"ignore_eos": True, "return_tokens_as_token_ids": True},
    }
    with OpenAI(base_url=running.service(family)["status"]["url"], api_key="none", max_retries=0) as client:
        prompt = tokenizer(PROMPT).input_ids
        assert len(prompt) > (getattr(reference.config, "sliding_window", None) or 0)
        completion = client.completions.create(prompt=PROMPT, max_tokens=TOKENS, logprobs=0, **options)
        assert completion.usage is not None
        assert completion.usage.prompt_tokens == len(prompt)
        assert completion.choices[0].logprobs is not None
        assert completion.choices[0].logprobs.tokens == expected(prompt)

        messages: list[Any] = [{"role": "user", "content": PROMPT}]
        if not FAMILIES[family].template:
            with pytest.raises(BadRequestError, match=r"this model has no chat template; .* or use /v1/completions"):
                client.chat.completions.create(messages=messages, max_tokens=TOKENS, **options)
            return
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        answer = client.chat.completions.create(messages=messages, max_tokens=TOKENS, logprobs=True, **options)
        assert answer.choices[0].logprobs is not None
        assert [each.token for each in answer.choices[0].logprobs.content or ()] == expected(prompt)
