"""What an LLMService's status says, from what is observed: conditions, counts, failures, checks, memory."""

from blade_operator.status.build import Situation, build_status
from blade_operator.status.transitions import transitions

__all__ = ["Situation", "build_status", "transitions"]
