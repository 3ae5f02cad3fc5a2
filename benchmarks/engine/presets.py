"""What each preset of ``blade_llm_server`` brings and costs on CPU, beside the defaults:
``python -m benchmarks.engine.presets``.

Engines with the demo model, one for each preset and one with the defaults, take turns; a figure is the median over
rounds of the ratio to the defaults of the same round. Time is this process's on the CPU: one thread computes, and what
else the machine does counts little. All have the same bytes for their KV cache, and threads. Two
figures are no times: tokens in a byte of KV cache, and the working memory that a step may take.

``ROWS``: presets to measure, separated by commas; all without it.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.figures import QUICK, Figure, report
from blade_llm.cli.presets import PRESETS, apply_preset
from blade_llm.cli.server_flags import memory_fields
from blade_llm.cli.vllm_flags import ServerFlagParser
from blade_llm.config import EngineConfig
from blade_llm.engine.build import build_core
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.speculative_options import speculative_from_flags

MODEL = Path(__file__).parents[2] / "examples" / "demo_model" / "model"
KV_CACHE = "64MiB"
ROUNDS = 3 if QUICK else 5
MANY = 64 if QUICK else 256
SHORT, LONG, OUTPUT = 64, 3072, 32
"""Tokens of prompts and outputs."""
WATCHED = 8
"""Requests that decode while a long prompt comes."""
_numbers = itertools.count()


@dataclass
class Engine:
    """One engine and what was measured of it, round by round."""

    core: EngineCore
    seconds: dict[str, list[float]] = field(default_factory=dict)


def main() -> int:
    wanted = [name for name in PRESETS if name in os.environ.get("ROWS", ",".join(PRESETS)).split(",")]
    engines = {name: Engine(_core(name)) for name in ("", *wanted)}
    for turn in range(ROUNDS + 1):  # the first warms up
        for name, measure in WORKLOADS.items():
            for engine in engines.values():
                seconds = measure(engine.core, turn)
                if turn:
                    engine.seconds.setdefault(name, []).append(seconds)
    default = engines.pop("")
    figures: list[Figure] = []
    for preset, engine in engines.items():
        for name, theirs in engine.seconds.items():
            ratios = [before / own for before, own in zip(default.seconds[name], theirs, strict=True)]
            figures.append(Figure(f"{preset}_{name}", statistics.median(ratios), "x as fast"))
        figures += _memory(preset, default.core, engine.core)
    return report("presets", figures, model="examples/demo_model", rounds=str(ROUNDS))


def alone(core: EngineCore, turn: int) -> float:
    """Seconds between tokens of a request that has the engine for itself."""
    [times] = _run(core, [_prompt(SHORT, turn)], 4 * OUTPUT)
    return (times[-1] - times[0]) / len(times)


def many(core: EngineCore, turn: int) -> float:
    """Seconds for many requests at once."""
    begin = time.process_time()
    _run(core, [_prompt(SHORT, 1000 * turn + each) for each in range(MANY)], OUTPUT)
    return time.process_time() - begin


def long_prompt(core: EngineCore, turn: int) -> float:
    """Seconds to the first token of a long prompt."""
    begin = time.process_time()
    [times] = _run(core, [_prompt(LONG, 77 + turn)], 2)
    return times[0] - begin


def stall(core: EngineCore, turn: int) -> float:
    """The longest gap between tokens of requests that decode while a long prompt comes."""
    watched = [_prompt(SHORT, 500 * turn + each) for each in range(WATCHED)]
    times = _run(core, watched, OUTPUT, then=_prompt(LONG, 99 + turn))
    return max(after - before for each in times[:WATCHED] for before, after in itertools.pairwise(each))


WORKLOADS: dict[str, Callable[[EngineCore, int], float]] = {
    "alone": alone,
    "many": many,
    "long_prompt": long_prompt,
    "stall": stall,
}


def _core(preset: str) -> EngineCore:
    parser = ServerFlagParser("blade_llm_server")
    words = [str(MODEL), "--kv_cache_bytes", KV_CACHE, "--num_threads", "1"]
    flags = parser.parse([*words, *(["--preset", preset] if preset else [])])
    print(apply_preset(flags, parser.given) or "defaults", flush=True)
    config = EngineConfig(
        model=str(MODEL),
        served_names=("demo",),
        num_threads=1,
        deterministic=flags["deterministic"],
        max_waiting_requests=flags["max_waiting_requests"],
        speculative=speculative_from_flags(flags, Path),
        **memory_fields(flags),
    )
    return build_core(config)


def _run(
    core: EngineCore, prompts: Sequence[list[int]], output: int, then: list[int] | None = None
) -> list[list[float]]:
    """When each token of each request came; ``then`` is a prompt that comes when all decode."""
    sampling = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
    names = [_add(core, prompt, sampling) for prompt in prompts]
    times: dict[str, list[float]] = {name: [] for name in names}
    open_requests = set(names)
    while open_requests:
        for step in core.step():
            now = time.process_time()
            times[step.request_id] += [now] * len(step.token_ids)
            if step.finish_reason is not None:
                open_requests.discard(step.request_id)
        if then is not None and all(len(each) >= 2 for each in times.values()):
            names.append(_add(core, then, SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)))
            times[names[-1]] = []
            open_requests.add(names[-1])
            then = None
    return [times[name] for name in names]


def _add(core: EngineCore, prompt: list[int], sampling: SamplingParams) -> str:
    name = f"request-{next(_numbers)}"
    core.add(GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling))
    return name


def _prompt(length: int, seed: int) -> list[int]:
    """Tokens that no other prompt begins with."""
    return [(seed * 7919 + position * 31) % 2000 + 300 for position in range(length)]


def _memory(preset: str, default: EngineCore, own: EngineCore) -> list[Figure]:
    """Ratios of what the engines planned."""
    before, after = (core.state(epoch="", sequence=0, draining=False).memory for core in (default, own))
    assert before is not None
    assert after is not None
    return [
        Figure(f"{preset}_kv_tokens_a_byte", before.kv_block_bytes / after.kv_block_bytes, "x"),
        Figure(f"{preset}_step_memory", after.activation_peak / before.activation_peak, "x"),
    ]


if __name__ == "__main__":
    sys.exit(main())
