"""Specs of speculative decoding that keep its rules, and specs that break one."""

from __future__ import annotations

from typing import Any

from operator_support.rule_example import FILE, HUB, MODELSCOPE, Example, spec_of


def _speculative(uri: str = FILE, **speculative: Any) -> dict[str, Any]:
    return spec_of(uri, engine={"speculative": {"method": "draft", **speculative}})


def draft(uri: str, **fields: Any) -> dict[str, Any]:
    """The field ``draftModel``."""
    return {"draftModel": {"uri": uri, **fields}}


SPECULATIVE: tuple[Example, ...] = (
    Example("", "qwen", _speculative(method="ngram", ngram={"minMatch": 3}, steps=8, disableAboveBatch=4)),
    Example("", "qwen", _speculative(method="lookahead")),
    Example(
        "", "qwen", _speculative(method="lookahead", lookahead={"windowSize": 15, "gramSize": 5, "guessSetSize": 15})
    ),
    Example("", "qwen", _speculative(method="lookahead", lookahead={"windowSize": 59})),
    Example(
        "spec.engine.speculative.lookahead",
        "qwen",
        _speculative(method="lookahead", lookahead={"windowSize": 60}),
        "128",
    ),
    Example(
        "spec.engine.speculative.lookahead",
        "qwen",
        _speculative(method="ngram", lookahead={}),
        "is of method lookahead",
    ),
    Example("", "qwen", _speculative(**draft(FILE))),
    Example("", "qwen", _speculative(HUB, **draft("hf://Qwen/Qwen3-0.6B", revision="main"))),
    Example("", "qwen", _speculative(HUB, **draft(FILE))),
    Example("", "qwen", _speculative("pvc://store/a", **draft("pvc://store/b"))),
    Example("", "qwen", _speculative(method="eagle3", steps=3, **draft(FILE))),
    Example("", "qwen", _speculative(HUB, method="eagle3", **draft("hf://org/head", revision="main"))),
    Example("", "qwen", _speculative(method="mtp", steps=1)),
    Example(
        "spec.engine.speculative.draftModel", "qwen", _speculative(method="eagle3"), "eagle3 (a draft head) need it"
    ),
    Example("spec.engine.speculative.draftModel", "qwen", _speculative(method="mtp", **draft(FILE)), "no other"),
    Example("spec.engine.speculative.draftModel", "qwen", _speculative(method="lookahead", **draft(FILE))),
    Example("spec.engine.speculative.ngram", "qwen", _speculative(method="eagle3", ngram={}, **draft(FILE))),
    Example("spec.engine.speculative.lookahead", "qwen", _speculative(method="mtp", lookahead={}), "is of method"),
    Example("spec.engine.speculative.draftModel", "qwen", _speculative()),
    Example("spec.engine.speculative.draftModel", "qwen", _speculative(method="ngram", **draft(FILE))),
    Example("spec.engine.speculative.ngram", "qwen", _speculative(ngram={}, **draft(FILE))),
    Example("spec.engine.speculative.draftModel.revision", "qwen", _speculative(**draft(FILE, revision="x"))),
    Example("spec.engine.speculative.draftModel.uri", "qwen", _speculative(**draft(HUB))),
    Example("spec.engine.speculative.draftModel.uri", "qwen", _speculative(HUB, **draft(MODELSCOPE))),
    Example("spec.engine.speculative.draftModel.uri", "qwen", _speculative("pvc://a/x", **draft("pvc://b/x"))),
    Example("spec.engine.speculative.draftModel.uri", "qwen", _speculative("pvc://a/x", **draft(HUB))),
    Example(
        "spec.engine.speculative",
        "qwen",
        spec_of(engine={"task": "embed", "speculative": {"method": "ngram"}}),
    ),
    Example("spec.engine.extraArgs", "qwen", spec_of(engine={"extraArgs": ["--draft.model", "x"]})),
    Example("spec.engine.extraArgs", "qwen", spec_of(engine={"extraArgs": ["--decode-algo=ngram"]})),
)
