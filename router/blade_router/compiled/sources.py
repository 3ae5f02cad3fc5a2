"""The sources of the hot path, and the folder in which their compiled modules are.

Folders are named by a hash of all sources: what was compiled from other ones is never found, so an edited source can
not be shadowed by an old module.
"""

import hashlib
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

SUFFIX: Final = EXTENSION_SUFFIXES[0]
"""Of modules for this Python on this kind of machine."""
LIBRARY: Final = "blade_router__mypyc"
"""The module in which all the code is; the others only refer to it."""
SWITCH: Final = "BLADE_ROUTER_COMPILED"
"""``1``: it is an error if there are no compiled modules of these sources; ``0``: the sources are interpreted.
Otherwise the modules are used where there are some."""

_ROUTER: Final = Path(__file__).resolve().parent.parent
_PACKAGES: Final = ("endpoints", "http", "policies", "proxy", "request", "resume", "statistics")
"""Folders of the hot path; all in them, so that a new module is compiled, too."""
_MODULES: Final = (
    *("admission/controller.py", "admission/interface.py", "admission/limits.py"),
    *("observability/accounts.py", "observability/metrics.py", "observability/outcome.py"),
)
"""The hot path in other folders."""
_BUNDLED: Final = Path(__file__).resolve().parent / "modules"
"""Where a wheel has them."""


def hot_sources() -> list[Path]:
    """The modules that serve requests, without the packages they are in."""
    found = [path for package in _PACKAGES for path in (_ROUTER / package).rglob("*.py")]
    return sorted(path for path in (*found, *map(_ROUTER.joinpath, _MODULES)) if path.name != "__init__.py")


def module_name(source: Path) -> str:
    """The full name of the module in this file."""
    return ".".join(source.relative_to(_ROUTER.parent).with_suffix("").parts)


def folder_name() -> str:
    """Name of the folder for compiled modules of the sources as they are now."""
    found = hashlib.sha256()
    for source in hot_sources():
        found.update(b"%b\0%b\0" % (module_name(source).encode(), source.read_bytes()))
    return found.hexdigest()[:16] + SUFFIX.removesuffix(".so")


def cache() -> Path:
    """Where this user's builds are."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "bladellm" / "router"


def find() -> Path | None:
    """The folder with the compiled modules of the sources as they are now; None when they were not compiled."""
    name = folder_name()
    return next((place / name for place in (_BUNDLED, cache()) if (place / name / f"{LIBRARY}{SUFFIX}").exists()), None)
