"""How many draft tokens each decode of a step gets: as many as make tokens come sooner, often none.

A step's rate is the tokens that it is expected to bring over the seconds that it takes. The k-th draft token of a
decode brings a token with the probability that all up to it are accepted; so tokens are taken in the order of that
probability, and as many of them as make the rate best. All of a batch share one step, and with it the decision: where
a step with more tokens takes longer in proportion, as it does in large batches, the best number is 0. See Leviathan et
al., "Fast inference from transformers via speculative decoding" (arXiv 2211.17192), section 3.4, for one sequence.
"""

from __future__ import annotations

import numpy as np

from blade_llm.decoding.step_seconds import StepSeconds


def draft_counts(
    rates: np.ndarray, rooms: np.ndarray, seconds: StepSeconds, *, most_tokens: int, other_tokens: int = 0
) -> np.ndarray:
    """Draft tokens of each decode, [decodes] int64, all 0 where drafts cost more than they bring.

    Args:
        rates: [decodes, gamma] fp64: the probability that the k-th draft token is accepted, given those before it.
        rooms: [decodes] int64: draft tokens that each can have.
        most_tokens: draft tokens of all decodes together.
        other_tokens: the step's tokens that are not decodes.
    """
    decodes, gamma = rates.shape
    best_counts = np.zeros(decodes, dtype=np.int64)
    if not decodes or most_tokens <= 0:
        return best_counts
    base = decodes + other_tokens
    best = decodes / seconds.plain(base)
    reached = rates.cumprod(1)  # of each token: the probability that it is accepted
    reached = np.where(np.arange(gamma) < rooms[:, None], reached, 0.0)
    for steps in range(1, gamma + 1):
        gains = reached[:, :steps].ravel()
        order = np.argsort(-gains, kind="stable")[:most_tokens]
        order = order[gains[order] > 0.0]
        if not len(order):
            break
        numbers = np.arange(1, len(order) + 1)
        tokens = decodes + gains[order].cumsum()
        spent = seconds.target(decodes, base + numbers) + seconds.draft(decodes, steps)
        rate = tokens / spent
        index = int(rate.argmax())
        if rate[index] > best:
            best = float(rate[index])
            best_counts = np.bincount(order[: index + 1] // steps, minlength=decodes)
    return best_counts
