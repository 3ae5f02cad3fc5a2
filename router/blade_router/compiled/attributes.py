"""Attributes of compiled classes: mypyc reads them. Nothing else does, and mypy's package is not needed to run."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**attributes):
        """Leave a class as it is."""
        return lambda cls: cls


__all__ = ["mypyc_attr"]
