"""Versions of what is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def package_version(distribution: str = "bladellm") -> str:
    """``unknown`` where it is not installed (of this one the tree may be on the path alone)."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
