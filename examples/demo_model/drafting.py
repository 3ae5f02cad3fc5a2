"""What drafts bring the demo model: the draft model and the EAGLE-3 head, in the engine, one listed question at a time.

`acceptance` drafts at each step, as many tokens as it is told, in fp32: the same figures on any machine. `python -m
examples.demo_model.drafting` prints what they bring as the engine is served, where it measures what a draft costs and
drafts what pays: tokens per second of those without drafts, in rounds that take turns.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Literal

from benchmarks.figures import Figure, report
from transformers import AutoTokenizer

from blade_llm.config import EngineConfig, SpeculativeConfig
from blade_llm.decoding.step_seconds import StepSeconds
from blade_llm.engine.build import build_core
from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.engine.messages import GenerateRequest
from blade_llm.runner import build_runner
from blade_llm.sampling.parameters import SamplingParams

from .measure import HERE, MAX_NEW_TOKENS, listed_questions, prompt_ids
from .tokenizer import END_ID

GAMMAS = (3, 4)
"""Draft tokens of a step."""
Dtype = Literal["auto", "float32"]
GREEDY = SamplingParams(max_tokens=MAX_NEW_TOKENS, temperature=0.0)


def draft_model(root: Path, gamma: int) -> SpeculativeConfig:
    return SpeculativeConfig(method="draft", draft_model=str(root / "draft"), gamma=gamma)


def draft_head(root: Path, gamma: int) -> SpeculativeConfig:
    return SpeculativeConfig(method="eagle3", draft_model=str(root / "eagle3"), gamma=gamma)


METHODS = {"draft": draft_model, "eagle3": draft_head}


def engine_config(root: Path, speculative: SpeculativeConfig | None, dtype: Dtype = "auto") -> EngineConfig:
    return EngineConfig(
        model=str(root / "model"),
        served_names=("demo",),
        dtype=dtype,
        max_model_len=512,
        max_num_seqs=4,
        kv_cache_bytes=64 << 20,
        enable_prompt_cache=False,
        num_threads=1,
        speculative=speculative,
    )


def always_drafting(config: EngineConfig) -> EngineCore:
    """An engine to which drafts cost nothing, so that there are always as many as there can be."""
    runner = build_runner(config)
    assert runner.draft is not None
    info = EngineInfo(
        model="demo",
        max_model_len=runner.max_model_len,
        device="cpu",
        dtype=runner.dtype_name,
        vocab_size=runner.model_config.vocab_size,
    )
    return EngineCore.from_config(
        config,
        runner,
        info,
        num_blocks=runner.num_blocks,
        eos_token_ids=(END_ID,),
        step_seconds=StepSeconds({1: 1.0, 1000: 1.0}, {1: 0.0, 1000: 0.0}),
        draft_positions=runner.draft.max_positions,
    )


def answer(core: EngineCore, prompt: list[int]) -> list[int]:
    """Greedy answer, with the end token."""
    core.add(GenerateRequest(request_id="question", prompt_token_ids=prompt, sampling=GREEDY))
    tokens: list[int] = []
    while core.has_work:
        for output in core.step():
            tokens += output.token_ids
    return tokens


def prompts(root: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(root / "model")
    return [prompt_ids(tokenizer, item.question) for item in listed_questions()]


def drafted(core: EngineCore, asked: list[list[int]]) -> tuple[list[list[int]], float, float]:
    """The answers, the share of draft tokens that were accepted, and the tokens that each step with drafts brought."""
    answers = [answer(core, prompt) for prompt in asked]
    counts = core.state(epoch="", sequence=0, draining=False).speculation
    assert counts is not None
    later = sum(len(tokens) - 1 for tokens in answers)  # the first token comes with the prompt
    return answers, counts.accepted_tokens / counts.draft_tokens, later / counts.drafts


def acceptance(root: Path) -> list[Figure]:
    """The share of draft tokens that the model accepts, and tokens per step, over the listed questions."""
    asked = prompts(root)
    figures = []
    for name, method in METHODS.items():
        for gamma in GAMMAS:
            core = always_drafting(engine_config(root, method(root, gamma), "float32"))
            _, share, tokens = drafted(core, asked)
            goals = {"eagle3": (75, 3.0)}.get(name)
            figures += [
                _figure(f"demo_{name}_gamma_{gamma}_accepted", round(100 * share, 1), "%", goals and goals[0]),
                _figure(f"demo_{name}_gamma_{gamma}_step", round(tokens, 2), "tokens", goals and goals[1]),
            ]
    return figures


def _figure(name: str, value: float, unit: str, least: float | None) -> Figure:
    return Figure(name, value, unit) if least is None else Figure(name, value, unit, ">=", least)


def gain(root: Path, rounds: int) -> list[Figure]:
    """Tokens per second with drafts over those without, prompts included; the median of the rounds."""
    asked = prompts(root)
    plain = build_core(engine_config(root, None))
    cores = {
        f"demo_{name}_gamma_{gamma}": build_core(engine_config(root, method(root, gamma)))
        for name, method in METHODS.items()
        for gamma in GAMMAS
    }
    ratios: dict[str, list[float]] = {name: [] for name in cores}
    for _ in range(rounds):
        for name, core in cores.items():
            without, seconds = _seconds(plain, asked), _seconds(core, asked)
            ratios[name].append(without / seconds)
    return [Figure(f"{name}_gain", round(statistics.median(each), 2), "of normal") for name, each in ratios.items()]


def _seconds(core: EngineCore, asked: list[list[int]]) -> float:
    started = time.perf_counter()
    for prompt in asked:
        answer(core, prompt)
    return time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what drafts bring the demo model.")
    parser.add_argument("--root", type=Path, default=HERE, help="folder that holds model/, draft/ and eagle3/")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    return report("demo_drafting", acceptance(options.root) + gain(options.root, options.rounds))


if __name__ == "__main__":
    sys.exit(main())
