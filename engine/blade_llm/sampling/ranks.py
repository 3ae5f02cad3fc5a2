"""Sampling by several ranks, each of which has the logits of its part of the vocabulary. Tokens are those of one rank.

Where all rows are greedy, each rank finds the likeliest of its own tokens, and the likeliest of these is the likeliest
of all. Otherwise the rows are divided: a rank gets the whole logits of its share of them alone and samples from these
as one rank does, whatever they need, and all get what each has sampled. So logits go to where they are sampled from,
once, and the work of sampling is divided by the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blade_llm.kernels.argmax import argmax
from blade_llm.layers.vocabulary import exchange_logits
from blade_llm.parallel.group import RankGroup
from blade_llm.parallel.shares import share_of
from blade_llm.sampling.masks import TokenMasks
from blade_llm.sampling.parameters import INVALID_TOKEN
from blade_llm.sampling.sampler import SampledLogprobs, SampledSlots, Sampler, SamplerOutput
from blade_llm.spec.vocabulary import vocabulary_rows

_TOKEN, _REPORTED, _LOGPROBS = range(3)
"""Lines of what ranks send each other of their shares; those of log-probabilities are the chosen token's, the values of
the most likely ones, and these."""


def sample_by_ranks(
    sampler: Sampler,
    group: RankGroup | None,
    vocab_size: int,
    logits: Tensor,
    sampled: SampledSlots,
    masks: TokenMasks | None = None,
) -> SamplerOutput:
    """What ``sampler`` samples, the same on every rank of ``group``, which all call this; None: there is one.

    ``logits``: [rows, this rank's part of the vocabulary], contiguous.
    """
    if group is None:
        return sampler.sample(logits, sampled, masks)
    if masks is None and sampler.takes_the_likeliest(sampled.slots):
        return _likeliest(logits, vocabulary_rows(vocab_size, group.rank, group.size).start, group)
    return _by_shares(sampler, group, exchange_logits(logits, vocab_size, group), sampled, masks)


def _likeliest(logits: Tensor, first: int, group: RankGroup) -> SamplerOutput:
    """Of each row the likeliest token, the lowest among equals. ``first``: token of the first of ``logits``."""
    best = argmax(logits)
    values = logits.gather(1, best.unsqueeze(1)).squeeze(1).float()
    sent = torch.stack([best + first, values.view(torch.int32).long()])
    tokens, bits = group.all_gather(sent).view(2, group.size, -1)
    of_ranks = _numbers(bits).t().contiguous()
    winners = argmax(of_ranks).unsqueeze(1)  # equal ones of lower ranks are lower tokens
    chosen = tokens.t().gather(1, winners).squeeze(1)
    invalid = of_ranks.gather(1, winners).squeeze(1).isnan()
    return SamplerOutput(chosen, None, chosen.masked_fill(invalid, INVALID_TOKEN))


def _by_shares(
    sampler: Sampler, group: RankGroup, logits: Tensor, sampled: SampledSlots, masks: TokenMasks | None
) -> SamplerOutput:
    """``logits``: [share, vocabulary], of this rank's share of ``sampled``."""
    shares = [share_of(len(sampled.slots), rank, group.size) for rank in range(group.size)]
    wanted = sampler.wanted_logprobs(sampled.slots)
    most = min(max(wanted.values(), default=0), logits.shape[1])
    lines = _LOGPROBS + (1 + 2 * most if wanted else 0)
    sent = torch.zeros(lines, max(map(len, shares)), dtype=torch.int64, device=logits.device)
    if own := shares[group.rank]:
        own_masks = None if masks is None else masks.of(own)
        _write(sent, sampler.sample(logits, sampled.of(own), own_masks, most_likely=most))
    gathered = group.all_gather(sent)
    tokens = _joined(gathered[:_LOGPROBS], [len(share) for share in shares])
    logprobs: SampledLogprobs | None = None
    if wanted:
        found = _joined(gathered[_LOGPROBS:], [len(wanted.keys() & set(share)) for share in shares])
        values, likeliest = found[1 : 1 + most], found[1 + most :]
        of_rows = _numbers(found[0]), _numbers(values.t()), likeliest.t()
        logprobs = SampledLogprobs(list(wanted), list(wanted.values()), *of_rows)
    return SamplerOutput(tokens[_TOKEN], logprobs, tokens[_REPORTED])


def _write(sent: Tensor, own: SamplerOutput) -> None:
    """Put what a rank has sampled at the beginning of each line of ``sent``; of log-probabilities, that of the slots
    that want some."""
    count = len(own.tokens)
    sent[_TOKEN, :count] = own.tokens
    sent[_REPORTED, :count] = own.tokens if own.reported is None else own.reported
    if own.logprobs is not None:
        wanting, most = own.logprobs.top_values.shape
        lines = sent[_LOGPROBS:, :wanting]
        lines[0] = own.logprobs.chosen.view(torch.int32)
        lines[1 : 1 + most] = own.logprobs.top_values.view(torch.int32).t()
        lines[1 + most :] = own.logprobs.top_tokens.t()


def _joined(gathered: Tensor, counts: Sequence[int]) -> Tensor:
    """The ranks' columns without those that mean nothing. ``counts``: how many of each rank mean something."""
    width = gathered.shape[1] // len(counts)
    if all(count == width for count in counts):
        return gathered
    return torch.cat([gathered[:, rank * width : rank * width + count] for rank, count in enumerate(counts)], dim=1)


def _numbers(bits: Tensor) -> Tensor:
    """fp32 out of their bits."""
    return bits.to(torch.int32).contiguous().view(torch.float32)
