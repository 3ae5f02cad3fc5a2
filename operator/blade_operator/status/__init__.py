"""The status of an LLMService, derived from what is observed: conditions, counts, failures, checks, memory."""

from blade_operator.status.build import build_status
from blade_operator.status.inputs import StatusInputs
from blade_operator.status.transitions import transitions

__all__ = ["StatusInputs", "build_status", "transitions"]
