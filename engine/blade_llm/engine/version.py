"""The installed distribution's version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """``unknown`` when nothing is installed (the tree is only on the path)."""
    try:
        return version("bladellm")
    except PackageNotFoundError:
        return "unknown"
