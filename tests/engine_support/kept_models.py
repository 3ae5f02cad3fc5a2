"""Random models that are made once in a process: transformers takes ten times as long to make, save and load one as it
takes to copy it, and many tests want the same."""

from __future__ import annotations

import atexit
import copy
import shutil
import tempfile
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import torch


class KeptModels:
    """Folders of models and transformers' own of them, by what they were made of."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[Path, Any, torch.Tensor]] = {}

    def save(self, key: Hashable, folder: Path, make: Callable[[Path], Any]) -> Any:
        """Copy what ``make`` has saved for ``key`` to ``folder``, and return a copy of the model that it returned.
        torch's random numbers go on as behind ``make``."""
        if key not in self._kept:
            made = Path(tempfile.mkdtemp(prefix="kept-model-"))
            atexit.register(shutil.rmtree, made, ignore_errors=True)
            self._kept[key] = made, make(made), torch.get_rng_state()
        made, model, random = self._kept[key]
        shutil.copytree(made, folder, dirs_exist_ok=True)
        torch.set_rng_state(random)
        return copy.deepcopy(model)
