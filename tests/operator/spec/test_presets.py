"""The operator's words about presets are the engine's."""

from __future__ import annotations

from typing import get_args

from blade_llm.cli.presets import PRESETS
from blade_operator.spec.fields import Preset
from blade_operator.spec.rules.service import PRESETS_OF_TEXT


def test_the_names_are_those_of_the_flag() -> None:
    assert get_args(Preset) == tuple(PRESETS)


def test_those_of_generated_text_are_refused_alike() -> None:
    assert tuple(name for name, preset in PRESETS.items() if preset.generates) == PRESETS_OF_TEXT
