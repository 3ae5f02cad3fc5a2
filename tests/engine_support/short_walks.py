"""Outputs under the mask of a grammar that end soon: what closes a string, a list or an object is preferred."""

from __future__ import annotations

from typing import Final

import numpy as np
from engine_support.guided_driver import EOS, Driver, SampledOutput

from blade_llm.sampling.grammar_spec import GrammarSpec

_MANY: Final = 60
"""Allowed tokens: it is inside a string."""


def short_walk(driver: Driver, spec: GrammarSpec, rng: np.random.Generator, limit: int = 1500) -> SampledOutput:
    """Sample until the output ends or has ``limit`` tokens; the further it is, the more it wants to end."""
    grammar = driver.start(spec)
    sampled: list[int] = []
    while not grammar.finished and len(sampled) < limit:
        if forced := grammar.forced():
            grammar.accept(forced)
            sampled += forced
            continue
        allowed = driver.allowed(grammar)
        assert allowed.size, (spec, sampled)
        if np.isin(allowed, EOS).any():
            assert grammar.complete
            grammar.accept([EOS[0]])
            break
        choices = allowed
        if rng.random() < 0.3 + len(sampled) / limit:
            wanted = (b'"', b"\\") if allowed.size > _MANY else (b"]}",)
            found = ([token for token in allowed.tolist() if driver.begins(token, ends)] for ends in wanted)
            choices = np.array(next(filter(None, found), allowed))
        token = int(rng.choice(choices))
        grammar.accept([token])
        sampled.append(token)
    return SampledOutput(sampled, driver.text(sampled, whole=grammar.finished), grammar.finished)
