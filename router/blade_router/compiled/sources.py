"""The sources of the hot path, and the folder in which their compiled modules are.

Folders are named by a hash of all sources, also of those that stay interpreted: mypyc copies constants of every module
that it sees, and trusts their types. So what was compiled from other sources is never found, and an edited one is not
shadowed by an old module.
"""

import hashlib
import os
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
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
_PACKAGES: Final = (
    *("admission/capacity", "endpoints", "http", "policies", "proxy", "request", "resume", "statistics"),
)
"""Folders of the hot path; all in them, so that a new module is compiled, too."""
_MODULES: Final = (
    *("admission/controller.py", "admission/fair_queue.py", "admission/interface.py", "admission/limits.py"),
    *("admission/pending_buffer.py", "admission/request_queue.py", "admission/request_queues.py"),
    "config/token_header.py",
    *("observability/accounts.py", "observability/metrics.py", "observability/outcome.py"),
    *("observability/recent_requests.py", "observability/traced_request.py"),
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
    for package in packages():
        for source in sorted(package.rglob("*.py")):
            found.update(b"%b\0%b\0" % (str(source.relative_to(package)).encode(), source.read_bytes()))
    return found.hexdigest()[:16] + SUFFIX.removesuffix(".so")


def packages() -> list[Path]:
    """All that the hot path is compiled with: the router, and what it shares with the engine.

    A wheel is built where nothing of this can be imported: then it is what lies beside it in the source tree.
    """
    protocol = find_spec("blade_protocol")
    if protocol is None or protocol.submodule_search_locations is None:
        return [_ROUTER, _ROUTER.parents[1] / "engine" / "blade_protocol"]
    return [_ROUTER, *map(Path, protocol.submodule_search_locations)]


def cache() -> Path:
    """Where this user's builds are.

    Raises:
        RuntimeError: the user has no home.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "bladellm" / "router"


def find() -> Path | None:
    """The folder with the compiled modules of the sources as they are now; None when they were not compiled."""
    name = folder_name()
    if _is_complete(bundled := _BUNDLED / name):
        return bundled
    try:
        built = cache() / name
    except RuntimeError:
        return None
    return built if _is_complete(built) and _is_own(built.parent) and _is_own(built) else None


def _is_complete(folder: Path) -> bool:
    return (folder / f"{LIBRARY}{SUFFIX}").exists()


def _is_own(folder: Path) -> bool:
    """Nobody else can put code there: it is this user's, and not writable for others."""
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022
