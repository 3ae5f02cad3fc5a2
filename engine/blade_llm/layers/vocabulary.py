"""The embedding table and the output matrix where their rows are divided among ranks (Shoeybi et al., arXiv
1909.08053, 3)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from blade_llm.parallel.group import RankGroup
from blade_llm.spec.vocabulary import vocabulary_rows, vocabulary_width


def embed(token_ids: Tensor, table: Tensor, vocab_size: int, group: RankGroup | None) -> Tensor:
    """[tokens] int to [tokens, hidden]. ``table``: [rows, hidden], of several ranks the rows of this one."""
    if group is None:
        return F.embedding(token_ids, table)
    rows = vocabulary_rows(vocab_size, group.rank, group.size)
    others = (token_ids < rows.start) | (token_ids >= rows.stop)
    own = F.embedding((token_ids - rows.start).masked_fill_(others, 0), table)
    return group.all_reduce(own.masked_fill_(others.unsqueeze(1), 0.0))


def gather_logits(logits: Tensor, vocab_size: int, group: RankGroup) -> Tensor:
    """Logits of the whole vocabulary, [tokens, vocabulary], from those of this rank's rows, [tokens, rows]."""
    width = vocabulary_width(vocab_size, group.size)
    padded = F.pad(logits, (0, width - logits.shape[1])) if logits.shape[1] < width else logits
    return group.all_gather(padded.contiguous())[:, :vocab_size].contiguous()
