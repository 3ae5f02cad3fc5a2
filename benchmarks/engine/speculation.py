"""What speculative decoding gains and costs: ``python -m benchmarks.engine.speculation``.

The target is the model of ``make bench`` (Qwen2.5-0.5B's shape, random weights), the draft a model of a tenth of its
size. Two random models never agree, so agreement is given: the draft model computes as ever, then each of its tokens is
replaced by the target's own with a stated probability, and by another one else. Rounds with and without drafts take
turns, and their tokens are compared.

N-grams are measured on the same requests, whose outputs repeat themselves sooner or later, as those of random models
do; and on prompts that already have what is repeated, as when a text is copied or edited: a request's prompt with the
output that it got, up to where that goes round in circles. ``PEERS=vllm``: there vLLM's prompt lookup for CPUs, too,
as many tokens at once, its rounds between ours.

Lookahead decoding is measured on the demo model's own questions (random models have no trajectory worth guessing), one
after another; and in a batch of the 0.5B, where it has to switch itself off.

The demo model's own draft model is measured on its questions, too, at whatever it gets right; ``PEERS=llama``: beside
llama.cpp with the same two models.

A head of EAGLE-3 is measured as the draft model is. ``ROWS``: ``draft``, ``eagle3``, ``ngram``, ``look_ahead`` or
``demo_draft`` alone.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from benchmarks.engine.random_head import random_head
from benchmarks.figures import QUICK, Figure, report
from benchmarks.peers.llama_server import llama_server
from benchmarks.peers.model import random_model
from benchmarks.peers.peers import CACHE, VLLM_NGRAM
from benchmarks.peers.running import Running, worker_options
from benchmarks.peers.shapes import KNOWN_TOKENS, QWEN2
from blade_llm.config import EngineConfig, SpeculativeConfig
from blade_llm.engine.build import build_core
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.plan import StepPlan

LENGTH = 32 if QUICK else 128
ROUNDS = 2 if QUICK else 5
MANY = 8 if QUICK else 32
GAMMA = 4
DEMO = Path(__file__).parents[2] / "examples" / "demo_model"
DRAFT = replace(
    QWEN2,
    name="qwen2-draft",
    config={
        **QWEN2.config,
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
)
Tokens = dict[str, list[int]]
Answering = Callable[[list[int], int], tuple[list[int], float]]
"""From a question and the most tokens to the answer, and the seconds after its first token."""


def main() -> int:
    rows = os.environ.get("ROWS", "")
    model = random_model(CACHE / "models" / "qwen2-0.5b")
    plain = _core(model)
    if rows:
        return report("speculation", _ROWS[rows](plain, model), keep=True)
    return report("speculation", [figure for row in _ROWS.values() for figure in row(plain, model)])


def _draft(plain: EngineCore, model: Path) -> list[Figure]:
    draft = random_model(CACHE / "models" / DRAFT.name, DRAFT)
    config = SpeculativeConfig(method="draft", gamma=GAMMA, draft_model=str(draft))
    return _with_given_acceptance("draft", plain, _core(model, config))


def _eagle3(plain: EngineCore, model: Path) -> list[Figure]:
    head = random_head(CACHE / "models" / "qwen2-0.5b-eagle3")
    config = SpeculativeConfig(method="eagle3", gamma=GAMMA, draft_model=str(head))
    return _with_given_acceptance("eagle3", plain, _core(model, config))


def _with_given_acceptance(name: str, plain: EngineCore, speculating: EngineCore) -> list[Figure]:
    figures = []
    for rate, target in ((0.6, 1.5), (0.8, 2.0)):
        ratio = _compare(plain, speculating, 1, rate)
        figures.append(Figure(f"{name}_{rate}_single", ratio, "of normal", ">=", target))
    batch = _compare(plain, speculating, MANY, 0.6)
    return [*figures, Figure(f"{name}_0.6_batch_{MANY}", batch, "of normal", ">=", 0.98)]


def _ngram(plain: EngineCore, model: Path) -> list[Figure]:
    ngram = _core(model, SpeculativeConfig(method="ngram", gamma=GAMMA))
    figures = [Figure("ngram_single", _compare(plain, ngram, 1), "of normal")]
    figures.append(Figure(f"ngram_batch_{MANY}", _compare(plain, ngram, MANY), "of normal", ">=", 0.98))
    copying = _copying(plain)
    before = _counts(ngram)
    ratio = _compare(plain, ngram, 1, prompts=copying)
    drafted, accepted = (after - earlier for after, earlier in zip(_counts(ngram), before, strict=True))
    figures.append(Figure("ngram_copying_acceptance", accepted / drafted, "of draft tokens"))
    figures.append(Figure("ngram_copying_single", ratio, "of normal", ">=", 2.5))
    if os.environ.get("PEERS") == "vllm":
        options = {**worker_options(QWEN2), "gamma": GAMMA, "max_length": 512}
        with Running(VLLM_NGRAM, model, **options) as peer:
            figures += _beside(peer, ngram, copying)
    return figures


def _core(model: Path, speculative: SpeculativeConfig | None = None) -> EngineCore:
    return build_core(
        EngineConfig(
            model=str(model),
            served_names=("m",),
            max_model_len=512,
            max_num_seqs=MANY,
            kv_cache_bytes=512 << 20,
            enable_prompt_cache=False,
            deterministic=True,  # logits of random weights are close: other tokens may win when several are computed
            speculative=speculative,
        )
    )


def _look_ahead(plain: EngineCore, model: Path) -> list[Figure]:
    """Lookahead decoding: the demo model's questions one by one, and many requests of the 0.5B at once."""
    sizes = SpeculativeConfig(method="look_ahead", look_ahead_window_size=15, look_ahead_gram_size=2, guess_set_size=5)
    cores = [_demo_core(speculative) for speculative in (None, sizes)]
    questions = _questions()
    ratios, steps = [], [0, 0]
    for _ in range(3 * ROUNDS):
        seconds = [0.0, 0.0]
        for question in questions:
            answers = []
            for index, core in enumerate(cores):
                before = core.scheduler._num_steps
                tokens, spent = _round(core, [question], ignore_eos=False)
                steps[index] += core.scheduler._num_steps - before - 1  # the first one is the prompt's
                seconds[index] += spent
                answers.append(tokens)
            assert answers[0] == answers[1]
        ratios.append(seconds[0] / seconds[1])
    batch = _compare(plain, _core(model, sizes), MANY)
    return [
        Figure("look_ahead_demo_steps", steps[0] / steps[1], "of normal, fewer"),
        Figure("look_ahead_demo_single", statistics.median(ratios), "of normal", ">=", 1.2),
        Figure(f"look_ahead_batch_{MANY}", batch, "of normal", ">=", 0.98),
    ]


def _demo_draft(_plain: EngineCore, _model: Path) -> list[Figure]:
    """The demo model's questions one by one, with its draft model and without, and so by llama.cpp."""
    speculative = SpeculativeConfig(method="draft", gamma=GAMMA, draft_model=str(DEMO / "draft"))
    core = _demo_core(speculative)
    engines: dict[str, Answering] = {"ours": _answering(_demo_core(None)), "ours_drafting": _answering(core)}
    with ExitStack() as stack:
        if os.environ.get("PEERS") != "llama":
            return _drafting("ours", _answer_rates(engines), _counts(core))
        engines["llama"] = stack.enter_context(llama_server(DEMO / "model")).complete
        peer = stack.enter_context(llama_server(DEMO / "model", DEMO / "draft", GAMMA))
        engines["llama_drafting"] = peer.complete
        rates = _answer_rates(engines)
    ratio = _median_ratio(rates["ours_drafting"], rates["llama_drafting"])
    return [
        *_drafting("ours", rates, _counts(core)),
        *_drafting("llama", rates, (peer.drafted, peer.accepted)),
        Figure("demo_draft_vs_llama", ratio, "x", ">=", 1.0),
    ]


def _drafting(name: str, rates: Mapping[str, list[float]], counts: tuple[int, int]) -> list[Figure]:
    """What the draft model brings this engine; ``counts``: tokens drafted and accepted."""
    plain, drafting = rates[name], rates[f"{name}_drafting"]
    return [
        Figure(f"demo_draft_{name}", statistics.median(drafting), "tokens/s"),
        Figure(f"demo_draft_{name}_normal", statistics.median(plain), "tokens/s"),
        Figure(f"demo_draft_{name}_gain", _median_ratio(drafting, plain), "of normal"),
        Figure(f"demo_draft_{name}_acceptance", counts[1] / counts[0], "of draft tokens"),
    ]


def _median_ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(rate / other for rate, other in zip(rates, others, strict=True))


def _answering(core: EngineCore) -> Answering:
    def answer(question: list[int], length: int) -> tuple[list[int], float]:
        tokens, seconds = _round(core, [question], length, ignore_eos=False)
        return tokens["0"], seconds

    return answer


def _answer_rates(engines: Mapping[str, Answering]) -> dict[str, list[float]]:
    """Tokens a second, by round: each answer without its first token, with its end token. All questions make a turn."""
    questions = _questions()
    rates: dict[str, list[float]] = {name: [] for name in engines}
    answers: dict[str, list[list[int]]] = {}
    for _ in range(1 + 3 * ROUNDS):
        for name, answer in engines.items():
            found = [answer(question, LENGTH) for question in questions]
            answers[name] = [tokens for tokens, _ in found]
            rates[name].append(sum(map(len, answers[name])) / sum(seconds for _, seconds in found))
    for name, each in answers.items():
        same = sum(a == b for a, b in zip(each, answers["ours"], strict=True))
        assert same > 0.5 * len(each), f"only {same} of {len(each)} answers of {name} are ours"
    return {name: each[1:] for name, each in rates.items()}  # the first round warms up


def _demo_core(speculative: SpeculativeConfig | None) -> EngineCore:
    """The demo model as it is served."""
    return build_core(
        EngineConfig(
            model=str(DEMO / "model"),
            served_names=("m",),
            max_model_len=512,
            max_num_seqs=32,
            kv_cache_bytes=64 << 20,
            enable_prompt_cache=False,
            num_threads=1,
            speculative=speculative,
        )
    )


def _questions() -> list[list[int]]:
    """The questions that the demo model is measured by, as prompts."""
    tokenizer = Tokenizer.from_file(str(DEMO / "model" / "tokenizer.json"))
    asked = json.loads((DEMO / "questions.json").read_text(encoding="utf-8"))
    form = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return [tokenizer.encode(form.format(each["question"])).ids for each in asked[: 5 if QUICK else None]]


def _beside(peer: Running, core: EngineCore, prompts: list[list[int]]) -> list[Figure]:
    """Tokens a second beside a peer's, whose time to the first token is subtracted."""
    peer.generate(prompts, 4)
    rates: dict[str, list[float]] = {"ours": [], "vllm": []}
    for _ in range(ROUNDS):
        rates["ours"].append((LENGTH - 1) / _round(core, prompts)[1])
        first = peer.generate(prompts, 1).seconds
        rates["vllm"].append((LENGTH - 1) / (peer.generate(prompts, LENGTH).seconds - first))
    ratio = statistics.median(o / t for o, t in zip(rates["ours"], rates["vllm"], strict=True))
    return [
        *(Figure(f"ngram_copying_single_{name}", statistics.median(each), "tokens/s") for name, each in rates.items()),
        Figure("ngram_copying_single_vs_vllm", ratio, "x", ">=", 1.0),
    ]


def _copying(core: EngineCore) -> list[list[int]]:
    """A prompt that ends in what the model goes on to repeat."""
    for seed in range(1, 20):
        [prompt] = _random_prompts(1, seed)
        tokens = _round(core, [prompt], 256)[0]["0"]
        tail = tokens[-96:]
        if any(tail[period:] == tail[:-period] for period in range(8, 49)):
            return [[*prompt, *tokens]]
    raise AssertionError("no output repeats itself")


def _counts(core: EngineCore) -> tuple[int, int]:
    """Tokens drafted and accepted so far."""
    counts = core.state(epoch="", sequence=0, draining=False).speculation
    assert counts is not None
    return counts.draft_tokens, counts.accepted_tokens


def _random_prompts(count: int, seed: int = 1) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, KNOWN_TOKENS, (64,), generator=generator).tolist() for _ in range(count)]


def _compare(
    plain: EngineCore,
    other: EngineCore,
    batch: int,
    rate: float | None = None,
    prompts: Sequence[list[int]] | None = None,
) -> float:
    """Tokens a second with drafts over those without; the median of rounds that take turns."""
    prompts = prompts or _random_prompts(batch)
    expected, _ = _round(plain, prompts)
    restore = _agree(other, expected, rate) if rate is not None else None
    ratios = []
    for _ in range(ROUNDS):
        same, without = _round(plain, prompts)
        found, seconds = _round(other, prompts)
        assert same == expected
        _check(found, expected)
        ratios.append(without / seconds)
    if restore is not None:
        restore()
    return statistics.median(ratios)


def _check(found: Tokens, expected: Tokens) -> None:
    """Tokens are the same in fp32; in bf16 a verified token may differ where two logits are all but equal."""
    equal = sum(a == b for name in expected for a, b in zip(found[name], expected[name], strict=True))
    total = sum(map(len, expected.values()))
    assert equal > 0.5 * total, f"only {equal} of {total} tokens are the same"


def _round(
    core: EngineCore, prompts: Sequence[list[int]], length: int = LENGTH, ignore_eos: bool = True
) -> tuple[Tokens, float]:
    """The tokens of requests with these prompts at once, and the seconds that decoding them took."""
    sampling = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=ignore_eos, seed=1)
    tokens: Tokens = {str(number): [] for number in range(len(prompts))}
    for name, prompt in zip(tokens, prompts, strict=True):
        core.add(GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling))
    started: float | None = None
    while core.has_work:
        for output in core.step():
            tokens[output.request_id] += output.token_ids
        if started is None and all(tokens.values()):
            started = time.perf_counter()
    assert started is not None
    return tokens, time.perf_counter() - started


def _agree(core: EngineCore, expected: Tokens, rate: float) -> Callable[[], None]:
    """Let the draft model's tokens be the expected ones with probability ``rate``; returns what undoes it."""
    runner: Any = core._runner
    assert isinstance(runner, TorchRunner)
    assert runner.draft is not None
    launch, forward, choose = runner.draft.launch, runner.launch_forward, random.Random(7)
    prompts: dict[int, int] = {}
    names: dict[int, str] = {}

    def follow(plan: StepPlan, *masks: Any) -> Any:
        for new in plan.new_requests:
            prompts[new.slot], names[new.slot] = new.num_prompt_tokens, new.request_id
        return forward(plan, *masks)

    def agreeing(plan: StepPlan, *masks: Any) -> Any:
        invalid = launch(plan, *masks)
        for chunk in plan.chunks:
            known = chunk.start + 1 - prompts[chunk.slot]
            right = expected[names[chunk.slot]][known : known + chunk.num_draft_tokens]
            drafted = [token if choose.random() < rate else (token + 1) % 1000 for token in right]
            begin = chunk.start + 1
            runner.tables.token_ids[chunk.slot, begin : begin + len(drafted)] = torch.tensor(drafted, dtype=torch.int32)
        return invalid

    runner.draft.launch = agreeing
    runner.launch_forward = follow

    def restore() -> None:
        runner.draft.launch = launch
        runner.launch_forward = forward

    return restore


_ROWS: dict[str, Callable[[EngineCore, Path], list[Figure]]] = {
    "draft": _draft,
    "eagle3": _eagle3,
    "ngram": _ngram,
    "look_ahead": _look_ahead,
    "demo_draft": _demo_draft,
}


if __name__ == "__main__":
    sys.exit(main())
