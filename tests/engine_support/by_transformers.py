"""The probabilities that transformers' logits processors give a request, in our order: penalties, bias, mask,
temperature, top-k, top-p, min-p.

Presence and frequency, which transformers does not have, are OpenAI's definition over the output alone, as vLLM has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from blade_llm.sampling.parameters import SamplingParams


def probabilities_by_transformers(
    params: SamplingParams,
    logits: torch.Tensor,
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    stops: Sequence[int] = (),
    allowed: Sequence[int] | None = None,
) -> torch.Tensor:
    """[vocabulary] fp64. ``logits``: [vocabulary]; ``stops``: masked before ``min_tokens``; ``allowed``: the mask."""
    from transformers import (
        LogitsProcessorList,
        MinNewTokensLengthLogitsProcessor,
        MinPLogitsWarper,
        PrefixConstrainedLogitsProcessor,
        RepetitionPenaltyLogitsProcessor,
        SequenceBiasLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    tokens = torch.tensor([[*prompt, *output]])
    scores = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(tokens, logits.unsqueeze(0).clone())
    counts = torch.tensor(output, dtype=torch.int64).bincount(minlength=len(logits))
    scores = scores - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
    rest = LogitsProcessorList()
    if params.logit_bias:
        rest.append(SequenceBiasLogitsProcessor({(token,): bias for token, bias in params.logit_bias.items()}))
    if params.min_tokens and stops:
        rest.append(MinNewTokensLengthLogitsProcessor(len(prompt), params.min_tokens, list(stops)))
    if allowed is not None:
        rest.append(PrefixConstrainedLogitsProcessor(lambda batch, sent: list(allowed), num_beams=1))
    rest.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k > 0:
        rest.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        rest.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0.0:
        rest.append(MinPLogitsWarper(params.min_p))
    found: torch.Tensor = rest(tokens, scores).double().softmax(-1)[0]
    return found
