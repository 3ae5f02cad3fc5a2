"""What a draft of several tokens reads, beside its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from blade_llm.kernels.kv_rows import QuantizedRows


@dataclass(frozen=True, slots=True)
class DraftSampling:
    """How sequences sample. All contiguous, one element or row each."""

    temperatures: Tensor
    """fp32; 0 for the likeliest token."""
    top_p: Tensor
    """fp32."""
    top_k: Tensor
    """int64; 0 for none."""
    keys: Tensor
    """[sequences, 2] int64, of the noise."""
    random: bool
    """Whether any samples at random."""
    filtered: bool
    """Whether any has top-k or top-p."""


@dataclass(frozen=True, slots=True)
class DraftTables:
    """The slots' tokens ([slots, length] int32), block tables ([slots, blocks] int32), and the draft model's cache."""

    token_ids: Tensor
    block_table: Tensor
    block_size: int
    kv_cache: Sequence[tuple[Tensor, Tensor]]
    kv_rows: QuantizedRows | None = None
    """How its rows are packed; None: they are not quantised."""
