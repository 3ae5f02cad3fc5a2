"""How many tokens go in and come out.

ShareGPT's conversations are what LLM servers are usually measured with; their lengths are close to log-normal. The
parameters below, after the filter everybody applies (4 to 1,024 tokens in, at least 4 out, 2,048 together), give the
means that the vLLM paper reports (Kwon et al., SOSP 2023, figure 11): about 161 tokens in and 338 out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Final

SHORTEST: Final = 4
LONGEST_INPUT: Final = 1024
LONGEST: Final = 2048

_INPUT_MEDIAN: Final = 85.0
_INPUT_SIGMA: Final = 1.6
_OUTPUT_MEDIAN: Final = 240.0
_OUTPUT_SIGMA: Final = 0.88


def fixed_lengths(input_tokens: int, output_tokens: int) -> Iterator[tuple[int, int]]:
    """The same pair (tokens in, tokens out) again and again."""
    while True:
        yield input_tokens, output_tokens


def sharegpt_lengths(random_source: random.Random, longest: int = LONGEST) -> Iterator[tuple[int, int]]:
    """Pairs (tokens in, tokens out) as in ShareGPT, of at most ``longest`` tokens together."""
    if longest < 2 * SHORTEST:
        raise ValueError(f"{longest} tokens leave no room for a prompt and an answer of {SHORTEST} tokens each")
    while True:
        tokens_in = round(random_source.lognormvariate(math.log(_INPUT_MEDIAN), _INPUT_SIGMA))
        tokens_out = round(random_source.lognormvariate(math.log(_OUTPUT_MEDIAN), _OUTPUT_SIGMA))
        if usual_length(tokens_in, tokens_out, longest):
            yield tokens_in, tokens_out


def usual_length(tokens_in: int, tokens_out: int, longest: int = LONGEST) -> bool:
    """Whether a conversation of this length takes part; the customary filter on ShareGPT."""
    return SHORTEST <= tokens_in <= LONGEST_INPUT and tokens_out >= SHORTEST and tokens_in + tokens_out <= longest
