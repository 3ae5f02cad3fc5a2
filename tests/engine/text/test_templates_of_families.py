"""What templates of the model families do, rendered as transformers' ``apply_chat_template`` renders it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engine_support.chat_templates import CONVERSATIONS, TEMPLATES
from engine_support.tiny_text import write_tokenizer

from blade_llm.text.chat_template import ChatTemplate
from blade_llm.text.errors import ChatTemplateError
from blade_llm.text.tokenizer import Tokenizer

SPECIAL = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("model"), **SPECIAL)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **SPECIAL)


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_is_that_of_transformers(name: str, folder: Path, theirs: Any) -> None:
    ours = ChatTemplate(TEMPLATES[name], Tokenizer(folder).special_tokens)
    rendered = 0
    for conversation in CONVERSATIONS.values():
        messages = conversation["messages"]
        arguments = {key: value for key, value in json.loads(json.dumps(conversation)).items() if key != "messages"}
        for begin in (False, True):
            try:
                expected = theirs.apply_chat_template(
                    messages, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=begin, **arguments
                )
            except Exception:
                with pytest.raises(ChatTemplateError):
                    ours.render(messages, add_generation_prompt=begin, arguments=arguments)
                continue
            assert ours.render(messages, add_generation_prompt=begin, arguments=arguments) == expected
            rendered += 1
    assert rendered or name in ("filters that fail", "attributes out of reach")


def test_there_are_enough() -> None:
    assert len(TEMPLATES) >= 30
