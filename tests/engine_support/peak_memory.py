"""What torch's operators allocate, on any device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """As a context: ``peak``, the most bytes at a time of storages that were made in it and had not gone again. What an
    operator allocates for its own duration is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}
    ) -> Any:
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **kwargs)
        for leaf in tree_leaves(result):
            if not isinstance(leaf, Tensor):
                continue
            storage = leaf.untyped_storage()
            key = storage._cdata
            if key not in given and key not in self._live:
                self._live[key] = storage.nbytes()
                weakref.finalize(storage, self._live.pop, key)
        self.peak = max(self.peak, sum(self._live.values()))
        return result
