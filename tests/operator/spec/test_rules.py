"""Cross-field rules: each has specs that keep it and specs that break it, and breaking one breaks that one alone."""

from __future__ import annotations

import pytest
from operator_support.rule_examples import EXAMPLES, Example

from blade_operator.spec import SpecError, parse_service
from blade_operator.spec.rules import RULES
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
    [rule] = [rule for rule in RULES if rule.field == example.breaks]
    assert (problem.path, problem.message) == (rule.field, rule.message)


def test_every_rule_has_an_example_that_breaks_it() -> None:
    assert {example.breaks for example in EXAMPLES} - {""} == {rule.field for rule in RULES}
