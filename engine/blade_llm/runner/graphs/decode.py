"""Decodes as CUDA graphs: the hundreds of kernel launches of a step become one.

A graph replays one batch size on fixed addresses. So there is one for each of a few sizes, and a smaller batch is
padded with a slot that belongs to no request; larger ones are launched kernel by kernel. All the rest of a step's state
lives in the slot tables and the KV cache, whose addresses never change, so slots and positions are a graph's only
inputs. Steps with prefill have graphs of their own (:mod:`blade_llm.runner.graphs.mixed`).
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import ClassVar, Final, Protocol

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

DEFAULT_LARGEST: Final = 256
"""Above, a step computes long enough to hide its launches."""

Decode = Callable[[Tensor, Tensor], Tensor]
"""A decode step on the device: slots and positions ([batch] int64 each) to hidden states, [batch, hidden]."""


class GraphBackend(Protocol):
    """Records work on the device; :class:`CudaGraphs` does, tests put another in its place."""

    def capture(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Record ``run``. Returns what repeats it, and the tensor that holds its result after each repetition."""


def graph_batch_sizes(sizes: Sequence[int] | None, largest: int | None, max_num_seqs: int) -> list[int]:
    """The batch sizes to capture, ascending.

    ``sizes`` (``--cuda_graph_batch_sizes``) wins over ``largest`` (``--cuda_graph_max_batch_size``, itself captured).
    No size exceeds ``max_num_seqs``: a listed one that does is captured as that.
    """
    if sizes is not None:
        return sorted({min(size, max_num_seqs) for size in sizes})
    limit = min(max_num_seqs, largest or DEFAULT_LARGEST)
    return [size for size in (1, 2, 4, *range(8, limit, 8)) if size < limit] + [limit]


class CudaGraphs:
    """Captures CUDA graphs that share one memory pool: steps never overlap, so neither need their temporaries."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = _capture_stream()

    def capture(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        # Once for real on the stream of the capture: libraries allocate their workspaces per stream, and compilation
        # or a lazily loaded kernel would break the capture.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            result = run()
        return graph.replay, result


@cache
def _capture_stream() -> torch.cuda.Stream:
    """The one stream of the process: cuBLAS keeps a workspace for each stream it ever saw, also one of graphs that are
    gone."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


class SizedGraphs:
    """Graphs of one kind, one for each of a few sizes: of a step that is larger than none but as large as the size."""

    log_name: ClassVar[str]
    """What a size is, in the log."""
    kind = ""
    """Of the steps, in the log; empty for those of the base model alone."""

    def __init__(self, sizes: Sequence[int], backend: GraphBackend) -> None:
        """``sizes``: ascending."""
        self.sizes = list(sizes)
        self._backend = backend
        self._graphs: dict[int, tuple[Callable[[], None], Tensor]] = {}
        self._captured: list[int] = []

    def capture(self, sizes: Sequence[int] | None = None) -> None:
        """Capture ``sizes`` (all of them when not given), the largest first: the smaller ones fit into its memory."""
        for size in sorted(self.sizes if sizes is None else sizes, reverse=True):
            logger.info("caching graph of %s=%d%s", self.log_name, size, self.kind)
            self._graphs[size] = self._backend.capture(partial(self._run, size))
        self._captured = sorted(self._graphs)

    def size_for(self, number: int) -> int | None:
        """The least captured size that holds ``number``; None when the largest does not."""
        index = bisect_left(self._captured, number)
        return self._captured[index] if index < len(self._captured) else None

    def _run(self, size: int) -> Tensor:
        """The step of ``size``, on static addresses alone; its hidden states."""
        raise NotImplementedError

    def _replay(self, size: int) -> Tensor:
        replay, hidden = self._graphs[size]
        replay()
        return hidden


class DecodeGraphs(SizedGraphs):
    """The graphs of decode batches, one for each batch size, and the padding of batches in between."""

    log_name = "graph_batch_size"

    def __init__(
        self, decode: Decode, sizes: Sequence[int], padding_slot: int, device: torch.device, backend: GraphBackend
    ) -> None:
        """``sizes``: ascending. ``padding_slot``: the slot that fills a batch up; it is always at position 0."""
        super().__init__(sizes, backend)
        self._padding_slot = padding_slot
        largest = self.sizes[-1] if self.sizes else 0
        self._slots = torch.full((largest,), padding_slot, dtype=torch.int64, device=device)
        self._starts = torch.zeros(largest, dtype=torch.int64, device=device)
        self._filled = 0
        """The number of slots that are not padding."""
        self._decode = decode

    def _run(self, size: int) -> Tensor:
        return self._decode(self._slots[:size], self._starts[:size])

    def decode(self, slots: Tensor, starts: Tensor) -> Tensor:
        """Hidden states of a batch for which :meth:`size_for` has a size, [batch, hidden].

        They are overwritten by the next batch of the same size: whatever reads them must be launched before.
        """
        batch = len(slots)
        size = self.size_for(batch)
        assert size is not None, f"no graph holds {batch} sequences"
        self._slots[:batch].copy_(slots)
        self._starts[:batch].copy_(starts)
        if batch < self._filled:
            self._slots[batch : self._filled].fill_(self._padding_slot)
            self._starts[batch : self._filled].zero_()
        self._filled = batch
        return self._replay(size)[:batch]
