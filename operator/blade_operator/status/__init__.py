"""The status of an LLMService, derived from what is observed: conditions, counts, failures, checks, memory."""

from blade_operator.status.build import build_status
from blade_operator.status.events.transitions import transitions
from blade_operator.status.inputs import StatusInputs

__all__ = ["StatusInputs", "build_status", "transitions"]
