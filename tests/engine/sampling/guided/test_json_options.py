"""llguidance's own options of how JSON is written, as clients put them into schemas (guidance does in every one)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from engine_support.guided_driver import Driver

from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided.errors import GrammarSpecError
from blade_llm.sampling.guided.validation import validate

_OBJECT = {"type": "object", "properties": {"a": {"enum": [1]}, "b": {"enum": [2]}}, "additionalProperties": False}
_SPACED, _BARE = '{"a": 1, "b": 2}', '{"a":1,"b":2}'
_GUIDANCE = {
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
    "lenient": False,
}
"""As guidance writes them where nothing is said."""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(tmp_path_factory.mktemp("text"), merges=True)


def _specs(schema: dict[str, Any]) -> list[GrammarSpec]:
    """The schema alone, and in a grammar."""
    text = json.dumps(schema)
    return [GrammarSpec("json", text), GrammarSpec("grammar", f"start: %json {text}")]


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({}, _SPACED),
        (_GUIDANCE, _SPACED),
        (dict.fromkeys(_GUIDANCE), _SPACED),
        ({"whitespace_flexible": True}, _SPACED),
        ({"whitespace_flexible": True, "item_separator": ",", "key_separator": ":"}, _BARE),
        ({"whitespace_flexible": False}, _BARE),
        ({"item_separator": ","}, '{"a": 1,"b": 2}'),
        ({"key_separator": ":"}, '{"a":1, "b":2}'),
    ],
)
def test_json_is_written_as_the_options_say(driver: Driver, options: dict[str, Any], written: str) -> None:
    for spec in _specs({**_OBJECT, "required": ["a", "b"], "x-guidance": options}):
        assert validate(spec) == ()
        assert [text for text in (_SPACED, _BARE, '{"a": 1,"b": 2}', '{"a":1, "b":2}') if driver.takes(spec, text)] == [
            written
        ]


def test_each_schema_of_a_grammar_has_its_own_options(driver: Driver) -> None:
    bare = {**_OBJECT, "required": ["a"], "x-guidance": {"whitespace_flexible": False}}
    spaced = {**_OBJECT, "required": ["a"]}
    spec = GrammarSpec("grammar", f'start: one "|" two\none: %json {json.dumps(bare)}\ntwo: %json {json.dumps(spaced)}')
    validate(spec)
    assert driver.takes(spec, '{"a":1}|{"a": 1}')
    assert not driver.takes(spec, '{"a": 1}|{"a": 1}')


def test_a_value_may_match_two_cases_where_the_client_says_so(driver: Driver) -> None:
    schema = {"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 3, "maximum": 9}]}
    for spec in _specs(schema):
        with pytest.raises(GrammarSpecError, match="oneOf"):
            validate(spec)
    for spec in _specs({**schema, "x-guidance": {"coerce_one_of": True}}):
        validate(spec)
        assert [text for text in ("2", "4", "8", "11") if driver.takes(spec, text)] == ["2", "4", "8"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lenient": True}, "#/x-guidance/lenient must be false or null, not true: no other is followed"),
        ({"whitespace_flexible": 1}, "#/x-guidance/whitespace_flexible must be true or false or null"),
        ({"whitespace_pattern": " *"}, "#/x-guidance/whitespace_pattern must be null"),
        (
            {"item_separator": "; "},
            '#/x-guidance/item_separator must be "," or ", " or null, not "; ": no other is followed',
        ),
        ({"json_allowed_escapes": "u"}, "#/x-guidance: option 'json_allowed_escapes' is not supported"),
        ([], "#/x-guidance: must be an object"),
    ],
)
def test_options_that_cannot_be_followed_are_refused(options: Any, message: str) -> None:
    for spec in _specs({**_OBJECT, "x-guidance": options}):
        with pytest.raises(GrammarSpecError, match=re.escape(message)):
            validate(spec)


def test_options_stand_at_the_root_alone() -> None:
    for spec in _specs({"type": "array", "items": {"type": "string", "x-guidance": _GUIDANCE}}):
        with pytest.raises(GrammarSpecError, match="#/items/x-guidance: keyword 'x-guidance' is not supported"):
            validate(spec)
