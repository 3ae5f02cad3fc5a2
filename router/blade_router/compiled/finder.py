"""Importing compiled modules in place of their sources."""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from blade_router.compiled.sources import SUFFIX, SWITCH, find


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
    """Use the compiled modules of these sources, where the environment asks for them. Called before any is imported.

    Raises:
        ImportError: there are none, and the switch in the environment says that there must be.
    """
    switch = os.environ.get(SWITCH, "")
    if switch != "1" or compiled():
        return
    folder = find()
    if folder is not None:
        sys.meta_path.insert(0, CompiledFinder(folder))
    else:
        raise ImportError(f"{SWITCH}=1, and blade_router is not compiled: run python -m blade_router.compiled")


def compiled() -> bool:
    """Whether compiled modules are used."""
    return any(isinstance(finder, CompiledFinder) for finder in sys.meta_path)
