"""Where the time of a decode step goes on CPU: ``python -m benchmarks.engine.step_profile``.

First a step as it is; then one with the layers' operators called from Python, one by one: they are synchronous, so
Python's own profiler sees each one's time. What it adds itself is in ``host``. The model is the random one of
``make bench``, with contexts of about 200 tokens.
"""

from __future__ import annotations

import cProfile
import pstats
import random
import sys
import time
from collections import Counter
from pathlib import Path

from benchmarks.figures import Figure, report
from benchmarks.peers.model import random_model
from benchmarks.peers.peers import CACHE
from benchmarks.peers.rounds import words
from blade_llm.config import EngineConfig
from blade_llm.engine.build import build_core
from blade_llm.engine.messages import GenerateRequest
from blade_llm.sampling.parameters import SamplingParams

STEPS = 60


def main() -> int:
    model = random_model(CACHE / "models" / "qwen2-0.5b")
    core = build_core(EngineConfig(model=str(model), served_names=("m",), max_model_len=4096, kv_cache_bytes=512 << 20))
    network = core._runner.model
    dice = random.Random(0)
    sampling = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True, seed=0)
    figures: list[Figure] = []
    for batch in (1, 16):
        names = [f"{batch}-{number}" for number in range(batch)]
        for name in names:
            core.add(GenerateRequest(request_id=name, prompt_token_ids=words(dice, 128), sampling=sampling))
        for _ in range(30):
            core.step()
        start = time.perf_counter()
        for _ in range(STEPS):
            core.step()
        figures.append(Figure(f"step_b{batch}", 1e3 * (time.perf_counter() - start) / STEPS, "ms"))
        fused, network.fused = network.fused, None
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(STEPS):
            core.step()
        profile.disable()
        network.fused = fused
        core.abort(names)
        for operator, seconds in _by_operator(profile).most_common():
            figures.append(Figure(f"step_b{batch}_{operator}", 1e3 * seconds / STEPS, "ms"))
    return report("step_profile", figures)


def _by_operator(profile: cProfile.Profile) -> Counter[str]:
    """Seconds in the native call of each operator; all else is the host's."""
    spent: Counter[str] = Counter()
    for (file, _, _), (_, _, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        path = Path(file)
        spent[path.parent.name if path.name == "native.py" and "kernels" in path.parts else "host"] += own
    return spent


if __name__ == "__main__":
    sys.exit(main())
