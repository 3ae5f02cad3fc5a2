"""Rules of ``spec.engine.speculative`` that span fields."""

from __future__ import annotations

from typing import Final, Literal

from blade_operator.spec.fields import LLMServiceSpec
from blade_operator.spec.model_fields import HUBS
from blade_operator.spec.rules.place import cel_readable, readable
from blade_operator.spec.rules.rule import Rule

_AT: Final = ("spec", "engine", "speculative")
_FIELD: Final = ".".join(_AT)
_WITH_DRAFT_MODEL: Final = ("draft", "eagle3")
"""Methods whose draft tokens come from a folder of its own."""
_MOST_LOOK_AHEAD: Final = 128
"""As many as attention has bits for."""


def _reachable(spec: LLMServiceSpec) -> bool:
    """Whether the pods can read the draft model."""
    speculative = spec.engine.speculative
    if speculative is None or speculative.draft_model is None:
        return True
    return readable(speculative.draft_model.uri, spec.model.uri)


def _has_its_draft_model(spec: LLMServiceSpec) -> bool:
    """Whether there is a draft model where the method needs one, and none elsewhere."""
    speculative = spec.engine.speculative
    return speculative is None or (speculative.method in _WITH_DRAFT_MODEL) == (speculative.draft_model is not None)


def _look_ahead(spec: LLMServiceSpec) -> int:
    """Tokens that lookahead decoding computes of a request in one step."""
    lookahead = None if spec.engine.speculative is None else spec.engine.speculative.lookahead
    return 0 if lookahead is None else (lookahead.gram_size - 1) * (lookahead.window_size + lookahead.guess_set_size)


def _settings_of(method: Literal["ngram", "lookahead"]) -> Rule:
    """The settings of a method go with no other."""
    return Rule(
        at=_AT,
        field=f"{_FIELD}.{method}",
        cel=f"self.method == '{method}' || !has(self.{method})",
        holds=lambda name, spec: (
            spec.engine.speculative is None
            or spec.engine.speculative.method == method
            or getattr(spec.engine.speculative, method) is None
        ),
        message=f"is of method {method}: remove it, or set that method",
    )


SPECULATIVE_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        at=_AT,
        field=f"{_FIELD}.draftModel",
        cel=f"(self.method in {list(_WITH_DRAFT_MODEL)}) == has(self.draftModel)",
        holds=lambda name, spec: _has_its_draft_model(spec),
        message="methods draft (a small model) and eagle3 (a draft head) need it, and no other method has one",
    ),
    _settings_of("ngram"),
    _settings_of("lookahead"),
    Rule(
        at=_AT,
        field=f"{_FIELD}.lookahead",
        cel="!has(self.lookahead) || (self.lookahead.gramSize - 1) * "
        f"(self.lookahead.windowSize + self.lookahead.guessSetSize) <= {_MOST_LOOK_AHEAD}",
        holds=lambda name, spec: _look_ahead(spec) <= _MOST_LOOK_AHEAD,
        message=f"(gramSize - 1) x (windowSize + guessSetSize) must be at most {_MOST_LOOK_AHEAD}: so many tokens of a "
        "request one step can branch",
    ),
    Rule(
        at=_AT,
        field=f"{_FIELD}.draftModel.revision",
        cel="!has(self.draftModel) || !has(self.draftModel.revision) "
        f"|| self.draftModel.uri.split(':')[0] in {list(HUBS)}",
        holds=lambda name, spec: (
            spec.engine.speculative is None
            or spec.engine.speculative.draft_model is None
            or spec.engine.speculative.draft_model.revision is None
            or spec.engine.speculative.draft_model.uri.partition("://")[0] in HUBS
        ),
        message="only an hf:// or modelscope:// model has a revision: remove it",
    ),
    Rule(
        at=("spec",),
        field=f"{_FIELD}.draftModel.uri",
        cel="!has(self.engine) || !has(self.engine.speculative) || !has(self.engine.speculative.draftModel) || "
        + cel_readable("self.engine.speculative.draftModel.uri"),
        holds=lambda name, spec: _reachable(spec),
        message="must be a file:// one, or of the kind of spec.model.uri (pvc:// of the same claim): the pods have one "
        "volume, and one Secret, for both",
    ),
    Rule(
        at=("spec", "engine"),
        field=_FIELD,
        cel="self.task == 'generate' || !has(self.speculative)",
        holds=lambda name, spec: spec.engine.task == "generate" or spec.engine.speculative is None,
        message="speeds up generated text, which tasks embed and score have none of: remove it",
    ),
)
