"""The LLM-aware router. Its hot path may be compiled: then these modules are imported in place of their sources."""

from blade_router.compiled import finder

finder.install()
