"""The wheel: with the router's hot path compiled where that can be done, otherwise pure Python.

``BLADE_ROUTER_COMPILED=1``: it is an error if it cannot be compiled; ``0``: the pure wheel.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_ROUTER = Path(__file__).parent / "router"
_SWITCH = "BLADE_ROUTER_COMPILED"


class CompiledRouter(BuildHookInterface[Any]):
    """Adds the compiled modules to the wheel; the sources stay in it."""

    def dependencies(self) -> list[str]:
        """What an isolated build installs beside hatchling."""
        return list(_builder().REQUIREMENTS) if self._wanted() and (_must() or _builder().compiler()) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not self._wanted():
            return
        try:
            folder = self._compiled()
        except _builder().BuildError as error:
            if _must():
                raise
            self.app.display_warning(f"the router's hot path stays interpreted in this wheel: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for module in folder.iterdir():
            build_data["force_include"][str(module)] = f"blade_router/compiled/modules/{folder.name}/{module.name}"

    def _compiled(self) -> Path:
        build = _builder()
        if not _must() and importlib.util.find_spec("mypyc") is None:
            raise build.BuildError(f"mypy is not installed; install {' '.join(build.REQUIREMENTS)}")
        folder: Path = build.build()
        return folder

    def _wanted(self) -> bool:
        """There is a router to compile, and it is not to stay interpreted."""
        return _ROUTER.exists() and os.environ.get(_SWITCH) != "0"


def _must() -> bool:
    return os.environ.get(_SWITCH) == "1"


def _builder() -> Any:
    """The router's own module: it is imported from the source tree, and interpreted."""
    if str(_ROUTER) not in sys.path:
        sys.path.insert(0, str(_ROUTER))
    switch = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = "0"
    try:
        from blade_router.compiled import build
    finally:
        if switch is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = switch
    return build
