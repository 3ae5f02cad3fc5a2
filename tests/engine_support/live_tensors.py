"""How many bytes of tensors are alive at a time, counted by torch's dispatcher: the same in each run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """Inside of it the results of all operations are counted, each storage once, for as long as it lives."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0
        """Bytes that were alive together."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        self._alive = {key: each for key, each in self._alive.items() if not each[0].expired()}
        for result in tree_leaves(results):
            if isinstance(result, Tensor):
                storage = result.untyped_storage()
                if (key := storage._cdata) not in self._alive:
                    self._alive[key] = (StorageWeakRef(storage), storage.nbytes())
        self.most = max(self.most, sum(nbytes for _, nbytes in self._alive.values()))
        return results


def most_alive(run: Callable[[], Any]) -> int:
    """The bytes of tensors made by ``run`` that were alive together at most."""
    with torch.no_grad(), LiveTensors() as live:
        run()
    return live.most
