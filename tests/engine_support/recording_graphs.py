"""A stand-in for CUDA graphs on CPU: repeats the captured function, and writes the result where the capture's was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from blade_llm.kernels import paged_attention
from blade_llm.kernels.paged_attention import PreparedAttention, RaggedBatch


class RecordingGraphs:
    """Remembers the rows of the results that it captured and replayed: batch sizes of decodes, or how many tokens a
    mixed step may sample after."""

    def __init__(self) -> None:
        self.captured: list[int] = []
        self.replayed: list[int] = []
        self.order: list[int] = []
        """Of each replay, which of the captures it repeated."""

    def capture(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        result = run().clone()
        size, index = len(result), len(self.captured)
        self.captured.append(size)

        def replay() -> None:
            self.replayed.append(size)
            self.order.append(index)
            result.copy_(run())

        return replay, result


def prepare_from_device(
    batch: RaggedBatch, block_table: Tensor, k_cache: Tensor, num_heads: int, **options: bool
) -> PreparedAttention:
    """As the Triton kernels do, read the lengths from the tensors; torch's attention would take the host's, which in a
    captured step are only an upper bound."""
    batch = replace(batch, host_seq_lens=batch.seq_lens.tolist())
    if batch.decodes is not None:  # sequences without tokens at the end are padding, for which torch has no form
        counts = batch.query_starts.diff().tolist()
        used = counts.index(0)
        assert not any(counts[used:])
        assert counts[: int(batch.decodes)] == [1] * int(batch.decodes)
        batch = replace(
            batch, slots=batch.slots[:used], query_starts=batch.query_starts[: used + 1],
            seq_lens=batch.seq_lens[:used], host_query_lens=counts[:used], host_seq_lens=batch.host_seq_lens[:used],
        )  # fmt: skip
    return paged_attention.prepare(batch, block_table, k_cache, num_heads, **options)
