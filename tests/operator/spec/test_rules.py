"""Cross-field rules: each has specs that keep it and specs that break it, and breaking one breaks that one alone."""

from __future__ import annotations

from typing import Any

import pytest
from operator_support.change_examples import CHANGES, Change
from operator_support.rule_example import Example
from operator_support.rule_examples import EXAMPLES

from blade_operator.spec import SpecError, apply_defaults, check_change, parse_service
from blade_operator.spec.rules.change import CHANGE_RULES
from blade_operator.spec.rules.service import OTHER_SPELLINGS, OWNED_FLAGS, RULES
from blade_protocol.labels import API_VERSION, KIND


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.name[:8]}-{example.breaks or 'valid'}")
def test_a_rule_judges_its_examples(example: Example) -> None:
    obj = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": example.name}, "spec": example.spec}
    if not example.breaks:
        parse_service(obj)
        return
    with pytest.raises(SpecError) as caught:
        parse_service(obj)
    [problem] = caught.value.problems
    [rule] = filter(example.is_of, RULES)
    assert (problem.path, problem.message) == (rule.field, rule.full_message)


def test_every_rule_has_an_example_that_breaks_it() -> None:
    assert [rule for rule in RULES if not any(example.is_of(rule) for example in EXAMPLES)] == []


@pytest.mark.parametrize("flag", [*OWNED_FLAGS, *OTHER_SPELLINGS])
def test_a_flag_with_a_field_of_its_own_is_refused_however_it_is_spelled(flag: str) -> None:
    words = flag.replace(".", "_").split("_")
    for spelled in (flag, flag.replace("_", "-"), f"no_{flag}", f"no-{flag}"):
        for argument in (f"--{spelled}", f"--{spelled}=1"):
            with pytest.raises(SpecError, match="have a field of their own"):
                parse_service(_with_arguments(argument))
    # Only whole flags are.
    parts = {"_".join(words[:count]) for count in range(1, len(words))} - {*OWNED_FLAGS, *OTHER_SPELLINGS}
    parse_service(_with_arguments(f"--{flag}_x", f"--x_{flag}", *(f"--{part}" for part in parts)))


def _with_arguments(*arguments: str) -> dict[str, Any]:
    spec = {"model": {"uri": "file:///m"}, "engine": {"extraArgs": [*arguments]}}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "qwen"}, "spec": spec}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.breaks or "allowed")
def test_a_rule_of_changes_judges_its_examples(change: Change) -> None:
    before, after = (apply_defaults(change.service(cache)) for cache in (change.before, change.after))
    if not change.breaks:
        check_change(before, after)
        return
    with pytest.raises(SpecError) as caught:
        check_change(before, after)
    [problem] = caught.value.problems
    [rule] = [rule for rule in CHANGE_RULES if rule.field == change.breaks]
    assert (problem.path, problem.message) == (rule.field, rule.message)


def test_every_rule_of_changes_has_an_example_that_breaks_it() -> None:
    assert {change.breaks for change in CHANGES} - {""} == {rule.field for rule in CHANGE_RULES}
