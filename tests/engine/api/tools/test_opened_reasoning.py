"""Templates that open the reasoning where it is wanted and add nothing else: other outputs do not think."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_support.tool_models import OPENED, QWEN3, QWEN25, THINKING, write_tool_model

from blade_llm.api.common.served_model import ModelSource, ServedModel, load_served_model
from blade_llm.api.tools.parsing import output_parsing

MESSAGES = [{"role": "user", "content": "Sum?"}]


def served(folder: Path, template: str, parser: str | None = None) -> ServedModel:
    write_tool_model(folder, template)
    return load_served_model(ModelSource(folder=str(folder), vocab_size=384, reasoning_parser=parser))


def prompt(model: ServedModel, **arguments: bool) -> str:
    assert model.chat_template is not None
    return model.chat_template.render(MESSAGES, arguments=arguments)


@pytest.mark.parametrize(
    ("template", "opened"),
    [(OPENED, True), (QWEN3, False), (THINKING, False), (OPENED + "{{ raise_exception('no') }}", False)],
)
def test_the_template_says_whether_the_prompt_decides(tmp_path: Path, template: str, opened: bool) -> None:
    form = served(tmp_path / "tools", template).reasoning_form
    assert form is not None
    assert form.opened is opened


def test_a_named_parser_is_no_other(tmp_path: Path) -> None:
    form = served(tmp_path / "tools", OPENED, "deepseek_r1").reasoning_form
    assert form is not None
    assert (form.name, form.opened) == ("deepseek_r1", True)
    assert served(tmp_path / "none", OPENED, "none").reasoning_form is None
    assert served(tmp_path / "plain", QWEN25).reasoning_form is None


def test_only_an_output_that_was_opened_thinks(tmp_path: Path) -> None:
    model = served(tmp_path / "tools", OPENED)
    assert output_parsing(model, None, prompt(model)) is None  # so a guide holds from the first token on
    assert output_parsing(model, None, prompt(model, enable_thinking=False)) is None
    thinking = output_parsing(model, None, prompt(model, enable_thinking=True))
    assert thinking is not None
    assert thinking.inside


@pytest.mark.parametrize(("said", "inside"), [("<think>\nHm, ", True), ("<think>\nHm.\n</think>\n\nYes, ", False)])
def test_an_output_that_is_continued_may_have_thought(tmp_path: Path, said: str, inside: bool) -> None:
    model = served(tmp_path / "tools", OPENED)
    parsing = output_parsing(model, None, prompt(model) + said, said)
    assert parsing is not None
    assert parsing.reasoning is model.reasoning_form
    assert parsing.inside is inside


def test_models_that_begin_by_themselves_may_think_after_any_prompt(tmp_path: Path) -> None:
    model = served(tmp_path / "tools", QWEN3)
    parsing = output_parsing(model, None, prompt(model))
    assert parsing is not None
    assert not parsing.inside
