"""Importing compiled modules in place of their sources."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from blade_router.compiled.sources import LIBRARY, SUFFIX, SWITCH, find


class CompiledFinder:
    """Finds the modules that were compiled into one folder; whatever is not there is imported as ever.

    A meta path finder without ``importlib.abc``'s class, whose import takes longer than all of this.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._modules = {path.name.removesuffix(SUFFIX): str(path) for path in folder.glob(f"*{SUFFIX}")}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._modules.get(fullname)
        if file is None:
            return None
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, file))


def install() -> None:
    """Use the compiled modules of these sources, where there are some. Called before any of them is imported.

    Raises:
        ImportError: there are none, or they do not load, and the switch in the environment says that there must be.
    """
    global _why_not
    switch = os.environ.get(SWITCH, "")
    if compiled():
        return
    if switch == "0":
        _why_not = f"{SWITCH}=0"
        return
    folder = find()
    if folder is None:
        _why_not = "these sources were not compiled for this Python; python -m blade_router.compiled does that"
    else:
        finder = CompiledFinder(folder)
        sys.meta_path.insert(0, finder)
        try:
            import_module(LIBRARY)
            return
        except ImportError as error:
            sys.meta_path.remove(finder)
            _why_not = str(error)
    if switch == "1":
        raise ImportError(f"{SWITCH}=1, and blade_router is interpreted: {_why_not}")


_why_not = ""


def compiled() -> bool:
    """Whether compiled modules are used."""
    return any(isinstance(finder, CompiledFinder) for finder in sys.meta_path)


def form() -> str:
    """Compiled, or interpreted and why: for the log."""
    return "compiled" if compiled() else f"interpreted ({_why_not})"
