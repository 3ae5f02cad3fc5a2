"""Evidence that may be looked at as often as one likes: e-processes.

An e-process is 1 at first and has an expectation of at most 1 at any time while the null hypothesis holds, whenever one
looks and whenever one stops. By Ville's inequality it ever exceeds 1/a with a probability of at most a: so a canary is
judged after each report of the routers, and not only at the end, without more false alarms than promised.

Likelihood ratios are e-processes (Wald, *Sequential Tests of Statistical Hypotheses*, 1945), and so are means of them
over alternatives that are not known beforehand (Robbins 1970; Johari, Koomen, Pekelis and Walsh, *Always Valid
Inference*, 2022; Howard, Ramdas, McAuliffe and Sekhon, *Time-uniform, nonparametric, nonasymptotic confidence
sequences*, 2021; Ramdas, Grünwald, Vovk and Shafer, *Game-theoretic statistics and safe anytime-valid inference*,
2023). Each function returns the natural logarithm of one, as a function of sums alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

_HIGHER: Final = (1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Alternatives: how many times as often something happens to the new revision."""
_OTHER: Final = (1 / 8, 1 / 4, 1 / 2, 2 / 3, 1.5, 2.0, 4.0, 8.0)
EFFECT_VARIANCE: Final = 1.0
"""Variance of the differences that are expected, in units of that of a batch's difference."""
LEAST_BATCHES: Final = 4


def log_more_often(new: int, old: int, share: float) -> float:
    """Evidence that something happens more often with the new revision, which gets ``share`` of all requests (0 to 1).

    ``new``, ``old``: how often it happened with each. If it happens equally often, each time it does it is the new
    revision's with the probability ``share``, however the rate itself moves with time: what strikes both alike, an
    overloaded network for one, is no evidence.
    """
    return _mixture(new, old, share, _HIGHER)


def log_other_distribution(new: Mapping[str, int], old: Mapping[str, int]) -> float:
    """Evidence that the categories of what the revisions answer have other shares; the keys are the categories.

    The mean over the categories of the evidence for each, which is an e-process, too.
    """
    totals = sum(new.values()), sum(old.values())
    names = sorted(new.keys() | old.keys())
    if not names or not all(totals):
        return 0.0
    share = totals[0] / sum(totals)
    return _log_mean([_mixture(new.get(name, 0), old.get(name, 0), share, _OTHER) for name in names])


def log_higher_mean(count: int, total: float, squares: float, least: float) -> float:
    """Evidence that independent normal numbers have a mean above ``least``; their variance is unknown.

    ``count``, ``total`` and ``squares``: how many, their sum and that of their squares. The mixture over effect sizes
    with a normal prior of the likelihood ratio of the t statistic, which does not depend on the variance (Lai 1976;
    Wang and Ramdas, *Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance*, 2024).
    0 while the mean is below ``least``, and with fewer than ``LEAST_BATCHES`` numbers.
    """
    if count < LEAST_BATCHES or total / count <= least:
        return 0.0
    mean = total / count - least
    variance = max(squares - total * total / count, 1e-12) / (count - 1)
    freedom, inflation = count - 1, 1.0 + count * EFFECT_VARIANCE
    t = count * mean * mean / variance / freedom
    return 0.5 * count * (math.log1p(t) - math.log1p(t / inflation)) - 0.5 * math.log(inflation)


def _mixture(new: int, old: int, share: float, ratios: Sequence[float]) -> float:
    """The mean likelihood ratio over alternatives of a coin that falls on ``new`` with the probability ``share``."""
    if not 0.0 < share < 1.0:
        return 0.0
    logs = []
    for ratio in ratios:
        scale = ratio * share + 1.0 - share
        logs.append(new * math.log(ratio / scale) - old * math.log(scale))
    return _log_mean(logs)


def _log_mean(logs: Sequence[float]) -> float:
    most = max(logs)
    return most + math.log(sum(math.exp(each - most) for each in logs) / len(logs))
