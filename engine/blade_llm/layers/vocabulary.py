"""The embedding table and the output matrix where their rows are divided among ranks (Shoeybi et al., arXiv
1909.08053, 3)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from blade_llm.layers.quantized_table import QuantizedTable
from blade_llm.parallel.group import RankGroup
from blade_llm.spec.vocabulary import vocabulary_rows, vocabulary_width


def embed(token_ids: Tensor, table: Tensor | QuantizedTable, vocab_size: int, group: RankGroup | None) -> Tensor:
    """[tokens] int to [tokens, hidden]. ``table``: [rows, hidden], of several ranks the rows of this one."""
    if group is None:
        return _rows(token_ids, table)
    rows = vocabulary_rows(vocab_size, group.rank, group.size)
    others = (token_ids < rows.start) | (token_ids >= rows.stop)
    own = _rows((token_ids - rows.start).masked_fill_(others, 0), table)
    return group.all_reduce(own.masked_fill_(others.unsqueeze(1), 0.0))


def _rows(ids: Tensor, table: Tensor | QuantizedTable) -> Tensor:
    return F.embedding(ids, table) if isinstance(table, Tensor) else table.rows(ids)


def gather_logits(logits: Tensor, vocab_size: int, group: RankGroup) -> Tensor:
    """Logits of the whole vocabulary, [tokens, vocabulary], from those of this rank's rows, [tokens, rows]."""
    return group.all_gather(_padded(logits, vocab_size, group))[:, :vocab_size].contiguous()


def exchange_logits(logits: Tensor, vocab_size: int, group: RankGroup) -> Tensor:
    """As :func:`gather_logits`, of this rank's share of the tokens alone: [share, vocabulary]."""
    return group.all_to_all(_padded(logits, vocab_size, group))[:, :vocab_size].contiguous()


def _padded(logits: Tensor, vocab_size: int, group: RankGroup) -> Tensor:
    """[tokens, rows], as wide as those of the other ranks."""
    width = vocabulary_width(vocab_size, group.size)
    padded = F.pad(logits, (0, width - logits.shape[1])) if logits.shape[1] < width else logits
    return padded.contiguous()
