"""Label selectors as HorizontalPodAutoscalers and kubectl send them."""

from __future__ import annotations

import pytest

from blade_operator.external_metrics.selector import LONGEST, only, parse

NAME = "serving.bladellm.io/name"
LABELS = {NAME: "qwen", "team": "a", "empty": ""}


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("", True),
        (f"{NAME}=qwen", True),
        (f"{NAME}==qwen", True),
        (f"{NAME} = qwen , team=a", True),
        (f"{NAME}=other", False),
        ("team!=b", True),
        ("team!=a", False),
        ("absent!=a", True),
        ("empty=", True),
        ("team=", False),
        ("team in (a,b)", True),
        ("team in (b, c)", False),
        ("team in ()", False),
        ("empty in ()", True),
        ("absent in (a)", False),
        ("team notin (b,c)", True),
        ("team notin (a)", False),
        ("absent notin (a)", True),
        ("team", True),
        ("absent", False),
        ("!absent", True),
        ("! team", False),
        (f"{NAME} in (qwen),team,!absent,empty notin (x),team!=c", True),
        ("in=x", False),
        ("notin", False),
    ],
)
def test_what_a_selector_accepts(text: str, accepted: bool) -> None:
    assert all(each.accepts(LABELS) for each in parse(text)) is accepted


@pytest.mark.parametrize(
    "text",
    [
        *(
            "=a",
            "a=b=c",
            "a in b",
            "a in (b",
            "a in(b",
            "team in (a)b",
            "a,,b",
            ",a",
            "a,",
            "a=b, ",
            "!",
            "a b",
            "a>1",
            "a in ((b))",
        ),
        *("a=b c", "-a=b", "a=-b", "a in (b c)", "a;b", "ain (b)", "a\x00=b", "é=a"),
    ],
)
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="label selector"):
        parse(text)


def test_a_long_selector_is_refused_and_one_of_the_most_characters_is_quick() -> None:
    with pytest.raises(ValueError, match=f"may have {LONGEST} characters"):
        parse("a" * (LONGEST + 1))
    with pytest.raises(ValueError, match="is not KEY=VALUE"):
        parse("a." * (LONGEST // 2 - 1) + "!")
    assert len(parse("a," * (LONGEST // 2 - 1) + "a")) == LONGEST // 2


def test_the_names_that_a_selector_leaves() -> None:
    assert only(parse(f"{NAME}=qwen,team=a"), NAME) == {"qwen"}
    assert only(parse(f"{NAME} in (a,b)"), NAME) == {"a", "b"}
    for text in ("", "team=a", f"{NAME}!=a", f"{NAME}", f"!{NAME}"):
        assert only(parse(text), NAME) is None
