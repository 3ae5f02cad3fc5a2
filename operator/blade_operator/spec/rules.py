"""Rules that span fields. Each is one record: what the API server evaluates, what we evaluate, what people read.

The CRD carries the CEL form, so a cluster refuses what breaks a rule when it is written; `parse_service` evaluates the
Python form for files and the local runtime. Only CEL that every supported Kubernetes knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from blade_operator.spec.fields import LLMServiceSpec
from blade_operator.spec.quantity import parse_duration

NAME_MAX: Final = 40
"""Leaves room for what the operator and Kubernetes append to it."""
_NAME: Final = r"[a-z]([-a-z0-9]*[a-z0-9])?"

OWNED_FLAGS: Final[dict[str, str]] = {
    "model": "spec.model.uri",
    "host": "the operator",
    "port": "the operator",
    "internal_port": "the operator",
    "served_model_name": "spec.model.servedNames",
    "dtype": "spec.engine.dtype",
    "max_model_len": "spec.engine.contextLength",
    "max_num_seqs": "spec.engine.maxNumSeqs",
    "kv_cache_bytes": "spec.engine.kvCacheBytes",
    "drain_timeout": "spec.rollout.drainTimeout",
}
"""Engine flags the operator sets, and what sets each."""
_OWNED: Final = f"--({'|'.join(OWNED_FLAGS)})(=.*)?".replace("_", "[_-]")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule at one place of the object."""

    at: tuple[str, ...]
    """Path of the object the CEL expression calls ``self``; empty: the LLMService itself."""
    field: str
    """Path people look at to mend it."""
    cel: str
    holds: Callable[[str, LLMServiceSpec], bool]
    message: str


def broken(rule: Rule, name: str, spec: LLMServiceSpec) -> bool:
    """Whether a service of this name and spec breaks ``rule``."""
    return not rule.holds(name, spec)


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        at=(),
        field="metadata.name",
        cel=f"size(self.metadata.name) <= {NAME_MAX} && self.metadata.name.matches('^{_NAME}$')",
        holds=lambda name, spec: len(name) <= NAME_MAX and re.fullmatch(_NAME, name) is not None,
        message=f"must be at most {NAME_MAX} lower case letters, digits and '-', starting with a letter",
    ),
    Rule(
        at=("spec", "model"),
        field="spec.model.revision",
        cel="!has(self.revision) || self.uri.startsWith('hf://')",
        holds=lambda name, spec: spec.model.revision is None or spec.model.uri.startswith("hf://"),
        message="only an hf:// model has a revision; remove it",
    ),
    Rule(
        at=("spec", "model"),
        field="spec.model.cache",
        cel="!has(self.cache) || self.uri.startsWith('hf://')",
        holds=lambda name, spec: spec.model.cache is None or spec.model.uri.startswith("hf://"),
        message="only an hf:// model is cached; remove it",
    ),
    Rule(
        at=("spec", "engine"),
        field="spec.engine.extraArgs",
        cel=f"!has(self.extraArgs) || !self.extraArgs.exists(a, a.matches('^{_OWNED}$'))",
        holds=lambda name, spec: not any(re.fullmatch(_OWNED, arg) for arg in spec.engine.extra_args),
        message="flags that have a field of their own are set there: "
        + ", ".join(f"--{flag} by {owner}" for flag, owner in OWNED_FLAGS.items()),
    ),
    Rule(
        at=("spec", "engine"),
        field="spec.engine.env",
        cel="!has(self.env) || !self.env.exists(e, e.name.startsWith('BLADE_'))",
        holds=lambda name, spec: not any(variable.name.startswith("BLADE_") for variable in spec.engine.env),
        message="names that start with BLADE_ are set by the operator; use another name",
    ),
    Rule(
        at=("spec", "rollout"),
        field="spec.rollout",
        cel="self.maxSurge + self.maxUnavailable > 0",
        holds=lambda name, spec: spec.rollout.max_surge + spec.rollout.max_unavailable > 0,
        message="maxSurge and maxUnavailable cannot both be 0: no engine could ever be replaced",
    ),
    Rule(
        at=("spec", "rollout"),
        field="spec.rollout.drainTimeout",
        cel="duration(self.drainTimeout) <= duration('24h')",
        holds=lambda name, spec: parse_duration(spec.rollout.drain_timeout) <= 24 * 3600,
        message="must be at most 24h",
    ),
)
