"""What drafts can gain at most, by acceptance, draft tokens and streams: ``python -m benchmarks.gpu.speculation_gain``.

Computed of the step times that ``make gpu PART=speculation`` measured: a step that verifies brings 1 + a + ... + a^g
tokens for g draft tokens accepted with probability a (Leviathan et al., arXiv 2211.17192, section 3.1), and takes what
a step of so many tokens takes, and g of the draft model. Needs no GPU.
"""

from __future__ import annotations

import json
import sys

from benchmarks.figures import RESULTS
from blade_llm.decoding.step_seconds import StepSeconds

ACCEPTANCE = (0.4, 0.6, 0.8, 0.9)
GAMMAS = (1, 2, 3, 4, 6)
STREAMS = (1, 8, 32)


def main() -> int:
    content = json.loads((RESULTS / "gpu_speculation.json").read_text(encoding="utf-8"))
    figures = {figure["name"]: figure["value"] for figure in reversed(content["figures"])}  # the draft model's steps
    steps = {int(name.rpartition("_")[2]): value for name, value in figures.items() if name.startswith("step_of_")}
    seconds = StepSeconds(steps)
    draft = figures["draft_token_b1"]
    print("| Requests | Accepted |", " | ".join(f"gamma {gamma}" for gamma in GAMMAS), "| Measured |")
    print("|---" * (len(GAMMAS) + 3) + "|")
    for streams in STREAMS:
        plain = 1e3 * streams / figures[f"normal_b{streams}_c1024"]
        for accepted in ACCEPTANCE:
            gains = [_gain(seconds, plain, draft, streams, gamma, accepted) for gamma in GAMMAS]
            measured = figures.get(f"draft_{accepted}_b{streams}_c1024")
            cells = [f"{gain:.2f}" for gain in gains] + ["" if measured is None else f"{measured:.2f}"]
            print(f"| {streams} | {accepted} |", " | ".join(cells), "|")
    return 0


def _gain(seconds: StepSeconds, plain: float, draft: float, streams: int, gamma: int, accepted: float) -> float:
    """Tokens a second over those without drafts. ``plain``, ``draft``: milliseconds of a step."""
    brought = sum(accepted**place for place in range(gamma + 1))
    return brought * plain / (seconds.target_of(streams * (1 + gamma)) + gamma * draft)


if __name__ == "__main__":
    sys.exit(main())
