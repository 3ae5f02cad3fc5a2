"""What two ranks of one core each reach beside one rank with both: ``python -m benchmarks.engine.tensor_parallel``.

The model is that of ``make bench`` (Qwen2.5-0.5B's shape, random weights). What several ranks cost is two all-reduces a
layer and one gathering of logits a step; what they gain, on more than one socket, cannot be seen here.

Sums of two ranks are rounded once more, so that in bf16 tokens differ sooner or later, and with them all that follow.
What is compared are the probabilities that both give the tokens of a prompt.
"""

from __future__ import annotations

import statistics
import sys

from benchmarks.engine.rank_rounds import MANY, PROMPT, compare, core_of, outputs_of, prompts_of
from benchmarks.figures import Figure, report
from benchmarks.peers.model import random_model
from benchmarks.peers.peers import CACHE
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest
from blade_llm.sampling.parameters import SamplingParams


def main() -> int:
    model = random_model(CACHE / "models" / "qwen2-0.5b")
    one, ranks = core_of(model), core_of(model, tensor_parallel_size=2)
    figures = [Figure("prompt_logprobs", _deviation(one, ranks), "mean difference to one rank", "<=", 0.02)]
    for name, batch in (("single", 1), (f"batch_{MANY}", MANY)):
        speeds = compare(one, ranks, batch)
        figures += [
            Figure(f"decode_{name}", speeds.decode, "of one rank", ">=", 0.95),
            Figure(f"prefill_{name}", speeds.prefill, "of one rank", ">=", 0.95),
        ]
    return report("tensor_parallel", figures)


def _deviation(one: EngineCore, ranks: EngineCore) -> float:
    """Of the log-probabilities of a prompt's tokens, which are about -12."""
    [prompt] = prompts_of(1)
    sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, seed=1)
    found: list[list[float]] = []
    for core in (one, ranks):
        core.add(GenerateRequest(request_id="p", prompt_token_ids=prompt, sampling=sampling))
        scored = [each for output in outputs_of(core) for each in output.prompt_logprobs or []]
        found.append([each.chosen for each in scored if each is not None])
    assert len(found[0]) == len(found[1]) == PROMPT - 1
    return statistics.mean(abs(a - b) for a, b in zip(*found, strict=True))


if __name__ == "__main__":
    sys.exit(main())
