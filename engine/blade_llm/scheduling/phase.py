"""The phases of a request, and which may follow which."""

from __future__ import annotations

import enum
from typing import Final


class Phase(enum.Enum):
    """The phase of a request: what is scheduled of it in the next steps."""

    WAITING = enum.auto()
    """New: owns neither slot nor blocks."""
    PREEMPTED = enum.auto()
    """Gave slot and blocks back, and waits to be computed again from the tokens it has."""
    PREFILL = enum.auto()
    """Owns a slot and the blocks of all its known tokens, up to ``prefill_end``; not all of them are scheduled."""
    DECODE = enum.auto()
    """Every position but that of the last known token is launched, and each step samples one more."""
    FORCED_TOKENS = enum.auto()
    """Its grammar forced tokens, from ``num_computed + 1`` to ``prefill_end - 1``, that are still to be computed, in a
    decode of several positions (jump-forward decoding)."""
    BEAM_SEARCH = enum.auto()
    """Its prompt is scheduled; from now on its beams are, all in one step."""
    AWAITING_RESULTS = enum.auto()
    """Nothing to schedule until what is in flight is delivered: the prompt's pooled state, or, with a grammar, the
    tokens after which it goes on with forced ones."""
    FINISHED = enum.auto()


WAITING_PHASES: Final = frozenset({Phase.WAITING, Phase.PREEMPTED})
RUNNING_PHASES: Final = frozenset(Phase) - WAITING_PHASES - {Phase.FINISHED}
"""The phases that own a slot and blocks."""

_ENDS: Final = frozenset({Phase.PREEMPTED, Phase.FINISHED})
TRANSITIONS: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.WAITING: frozenset({Phase.PREFILL, Phase.FINISHED}),
    Phase.PREEMPTED: frozenset({Phase.PREFILL, Phase.FINISHED}),
    Phase.PREFILL: _ENDS | {Phase.DECODE, Phase.BEAM_SEARCH, Phase.AWAITING_RESULTS},
    Phase.DECODE: _ENDS | {Phase.FORCED_TOKENS, Phase.AWAITING_RESULTS},
    Phase.FORCED_TOKENS: _ENDS | {Phase.DECODE, Phase.PREFILL},
    Phase.BEAM_SEARCH: _ENDS,
    Phase.AWAITING_RESULTS: _ENDS | {Phase.DECODE, Phase.FORCED_TOKENS},
    Phase.FINISHED: frozenset(),
}
"""The phases that may follow each one."""
