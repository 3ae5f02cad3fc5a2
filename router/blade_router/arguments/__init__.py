"""The command line of ``blade_router``."""

from blade_router.arguments.options import Options
from blade_router.arguments.parsing import parse_arguments

__all__ = ["Options", "parse_arguments"]
