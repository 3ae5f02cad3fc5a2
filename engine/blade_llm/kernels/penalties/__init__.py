"""Repetition, frequency and presence penalties, logit bias and mask: everything that changes logits before they are
divided by the temperature, in this order and in one pass.

Nothing is counted from step to step: the tokens themselves are the state, so a request that re-enters after a
preemption, or whose last token is still unknown to the host, needs no extra care.
"""

from torch import Tensor

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.penalties import torch as _reference
from blade_llm.kernels.penalties.bias import SparseBias
from blade_llm.kernels.penalties.masks import RowMasks

__all__ = ["RowMasks", "SparseBias", "apply_penalties"]


def apply_penalties(
    logits: Tensor,
    token_table: Tensor,
    rows: Tensor,
    num_prompt_tokens: Tensor,
    lengths: Tensor,
    penalties: Tensor,
    bias: SparseBias | None = None,
    masks: RowMasks | None = None,
) -> Tensor:
    """The changed copy, fp32, of ``logits`` ([rows, vocabulary], contiguous, of any float type).

    ``token_table``: [table rows, longest] int32; ``rows``: [rows] int64, each one's row there, of which the first
    ``lengths[i]`` tokens count, and of those the ones from ``num_prompt_tokens[i]`` on are output (both [rows] int64).
    ``penalties``: [rows, 3] fp32: repetition (Keskar et al., arXiv 1909.05858) divides positive and multiplies negative
    logits of any token in prompt or output, presence is subtracted once for tokens in the output, frequency once per
    occurrence; 1, 0, 0 leave a row as it is. Tokens that ``masks`` does not allow get ``-inf``.
    """
    arguments = logits, token_table, rows, num_prompt_tokens, lengths, penalties, bias, masks
    backend = backend_of(logits)
    if backend == "native":
        from blade_llm.kernels.penalties import native

        return native.apply_penalties(*arguments)
    if backend == "triton":
        from blade_llm.kernels.penalties import triton

        return triton.apply_penalties(*arguments)
    return _reference.apply_penalties(*arguments)
