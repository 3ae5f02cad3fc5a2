"""Chat templates render as Hugging Face's do, in a sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine_support.tiny_text import TEMPLATE, write_tokenizer

from blade_llm.text.chat_template import ChatTemplate, load_chat_template
from blade_llm.text.errors import ChatTemplateError, TokenizerFilesError
from blade_llm.text.tokenizer import Tokenizer

MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "<hi> & \u4e2d"},
]


def _render(source: str, **options: object) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(MESSAGES, **options)  # type: ignore[arg-type]


def test_special_tokens_and_the_generation_prompt() -> None:
    source = "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}"
    source += "{% if add_generation_prompt %}go{% endif %}"
    assert _render(source) == "<s>system:Be kind.</s>user:<hi> & \u4e2d</s>go"
    assert not _render(source, add_generation_prompt=False).endswith("go")


def test_it_equals_transformers(tmp_path: Path) -> None:
    transformers_utils = pytest.importorskip("transformers.utils.chat_template_utils")
    source = (
        "{%- for m in messages %}\n  {%- if loop.first %}{% continue %}{% endif %}\n"
        "{{ m | tojson }}\n{% generation %}{{ m['content'].strip() }}{% endgeneration %}\n{%- endfor %}\n"
    )
    theirs = transformers_utils._compile_jinja_template(source).render(messages=MESSAGES)
    assert _render(source) == theirs
    assert "\u4e2d" in theirs


def test_the_templates_own_refusal_is_reported() -> None:
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        _render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{% set _ = messages.append(1) %}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
    ],
)
def test_templates_cannot_leave_the_sandbox(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        _render(source)


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('system first') }}", "{{ 1 // 0 }}", "{{ [].pop() }}", "{{ 'a' + 1 }}"]
)
def test_what_a_template_raises_is_the_conversations_error(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="chat template"):
        _render(source)


def test_a_template_that_does_not_parse_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(TokenizerFilesError, match="line 2"):
        ChatTemplate("fine\n{% if %}", {})


def test_where_templates_are_found(tmp_path: Path) -> None:
    def found(folder: Path, override: str | None = None) -> str | None:
        template = load_chat_template(Tokenizer(folder), override)
        return None if template is None else template.render([{"role": "user", "content": "x"}])

    folder = write_tokenizer(tmp_path)
    assert found(folder) == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": TEMPLATE.upper()}]
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": [named[0], {**named[1], "template": "D"}]})
    )
    assert found(folder) == "D"
    (folder / "chat_template.jinja").write_text("from the file")
    assert found(folder) == "from the file"
    (tmp_path / "mine.jinja").write_text("mine")
    assert found(folder, str(tmp_path / "mine.jinja")) == "mine"
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text("{}")
    assert found(folder) is None
    with pytest.raises(TokenizerFilesError, match="no such file"):
        found(folder, str(tmp_path / "missing.jinja"))
    assert found(folder, "{{ messages[0].content }}!") == "x!", "the template itself"
