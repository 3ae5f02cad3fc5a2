"""The wheel: pure Python, or with the router's hot path compiled where ``BLADE_ROUTER_COMPILED=1`` asks for that."""

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_ROUTER = Path(__file__).parent / "router"


class CompiledRouter(BuildHookInterface[Any]):
    """Adds the compiled modules to the wheel; the sources stay in it."""

    def dependencies(self) -> list[str]:
        """What an isolated build installs beside hatchling."""
        return list(_builder().REQUIREMENTS) if self._wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not self._wanted():
            return
        folder = _builder().build()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for module in folder.iterdir():
            build_data["force_include"][str(module)] = f"blade_router/compiled/modules/{folder.name}/{module.name}"

    def _wanted(self) -> bool:
        """There is a router to compile, and it is to be compiled."""
        return _ROUTER.exists() and os.environ.get("BLADE_ROUTER_COMPILED") == "1"


def _builder() -> Any:
    """The router's own module: it is imported from the source tree, and interpreted."""
    if str(_ROUTER) not in sys.path:
        sys.path.insert(0, str(_ROUTER))
    switch = os.environ.get("BLADE_ROUTER_COMPILED")
    os.environ["BLADE_ROUTER_COMPILED"] = "0"
    try:
        from blade_router.compiled import build
    finally:
        if switch is None:
            del os.environ["BLADE_ROUTER_COMPILED"]
        else:
            os.environ["BLADE_ROUTER_COMPILED"] = switch
    return build
