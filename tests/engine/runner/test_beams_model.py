"""Beam search on a real model finds what transformers finds, also in company and on a cache that is too small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.async_device import AsyncDevice
from engine_support.fake_core import core_of
from engine_support.pairwise import pairwise
from engine_support.sched_invariants import check_invariants
from engine_support.tiny_models import engine_config, save_model

from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest, RequestOutput
from blade_llm.runner import build_runner
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams

VOCABULARY, BLOCKS = 199, 40
STOPS = tuple(range(3, VOCABULARY, 9))
"""Ends of sequence: many, as a random model hardly ever samples a given one."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, TorchRunner]:
    folder: Path = tmp_path_factory.mktemp("beams")
    reference = save_model(folder, "qwen2")
    config = engine_config(
        folder, max_num_seqs=12, max_model_len=160, max_batch_tokens=64, max_kv_blocks=BLOCKS, enable_prompt_cache=True
    )
    return reference, build_runner(config)


def core(runner: TorchRunner, *, late: bool = False, **limits: Any) -> EngineCore:
    values: dict[str, Any] = {"num_blocks": BLOCKS, "max_num_seqs": 12, "max_batch_tokens": 64, **limits}
    device = AsyncDevice(runner) if late else None
    return core_of(device or runner, max_model_len=160, eos_token_ids=STOPS, **values)


def prompt_of(length: int, start: int = 0) -> list[int]:
    return [(5 + start + 17 * i) % 190 + 4 for i in range(length)]


def search(name: str, prompt: list[int], width: int, num_outputs: int = 1, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(
        request_id=f"{name}.0",
        sibling_ids=[f"{name}.{i}" for i in range(1, num_outputs)],
        prompt_token_ids=prompt,
        sampling=SamplingParams(beam_width=width, **{"max_tokens": 20, **sampling}),
    )


def run(engine: EngineCore) -> dict[str, RequestOutput]:
    outputs: dict[str, RequestOutput] = {}
    while engine.has_work:
        for output in engine.step():
            assert output.request_id not in outputs
            outputs[output.request_id] = output
        check_invariants(engine.scheduler)
    assert engine.scheduler.cache.num_free == engine.scheduler.cache.num_blocks
    return outputs


def reference_beams(
    reference: Any,
    prompt: list[int],
    width: int,
    num_outputs: int,
    max_tokens: int,
    stops: tuple[int, ...],
    **options: Any,
) -> list[list[int]]:
    """transformers' outputs, best first, without what pads them and without the end of sequence."""
    padding = VOCABULARY - 1
    assert padding not in stops
    with torch.no_grad():
        found = reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=width,
            num_return_sequences=num_outputs,
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=list(stops),
            pad_token_id=padding,
            **options,
        )
    sequences = []
    for sequence in found[:, len(prompt) :].tolist():
        end = next((i for i, token in enumerate(sequence) if token in stops), len(sequence))
        sequences.append(sequence[:end])
    return sequences


SEARCHES = [(2, 1, 1), (3, 3, 16), (4, 2, 37)]
"""Width, outputs, tokens of the prompt."""


@pytest.mark.parametrize(
    ("width", "num_outputs", "length", "length_penalty", "early_stopping"),
    pairwise([pytest.param(*each) for each in SEARCHES], [-1.0, 0.0, 1.0, 2.5], [False, True]),
)
def test_as_transformers(
    model: tuple[Any, TorchRunner],
    early_stopping: bool,
    length_penalty: float,
    width: int,
    num_outputs: int,
    length: int,
) -> None:
    reference, runner = model
    prompt = prompt_of(length)
    options: dict[str, Any] = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    for max_tokens, stops in ((20, STOPS), (8, STOPS[:1]), (1, STOPS)):
        engine = core_of(
            runner,
            max_model_len=160,
            num_blocks=BLOCKS,
            max_num_seqs=12,
            max_batch_tokens=64,
            eos_token_ids=stops,
        )
        engine.add(search("a", prompt, width, num_outputs, max_tokens=max_tokens, **options))
        outputs = run(engine)
        expected = reference_beams(reference, prompt, width, num_outputs, max_tokens, stops, **options)
        assert [outputs[f"a.{i}"].token_ids for i in range(num_outputs)] == expected
        for output in outputs.values():
            assert (output.finish_reason == "stop") == (output.stop_token_id in stops)


@pytest.mark.parametrize("late", [False, True])
def test_searches_in_company(model: tuple[Any, TorchRunner], late: bool) -> None:
    """Two searches, samples and plain outputs at once; 14 blocks, so that some are preempted."""
    reference, runner = model
    engine = core(runner, late=late, num_blocks=14)
    plain = GenerateRequest(
        request_id="plain",
        prompt_token_ids=prompt_of(20, 3),
        sampling=SamplingParams(max_tokens=60, temperature=0, ignore_eos=True, seed=1),
    )
    engine.add(plain)
    first = search("first", prompt_of(30), 4, 2)
    second = search("second", prompt_of(45, 2), 3, 3, length_penalty=2.0)
    engine.add(first)
    engine.add(second)
    outputs: dict[str, list[int]] = {}
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).extend(output.token_ids)
        check_invariants(engine.scheduler)
    assert engine.scheduler.stats().preemptions_total > 0
    assert len(outputs["plain"]) == 60
    for message, penalty in ((first, 1.0), (second, 2.0)):
        ids = [message.request_id, *message.sibling_ids]
        expected = reference_beams(
            reference,
            message.prompt_token_ids,
            message.sampling.beam_width,
            len(ids),
            20,
            STOPS,
            length_penalty=penalty,
        )
        assert [outputs[name] for name in ids] == expected


def test_log_probabilities_of_an_output_add_up(model: tuple[Any, TorchRunner]) -> None:
    reference, runner = model
    engine = core(runner)
    prompt = prompt_of(21)
    engine.add(search("a", prompt, 3, 2, logprobs=2))
    for output in run(engine).values():
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + output.token_ids])).logits[0, len(prompt) - 1 : -1]
        logprobs = logits.log_softmax(-1)
        assert output.logprobs is not None
        for scores, token, logprobs_of_token in zip(logprobs, output.token_ids, output.logprobs, strict=True):
            assert logprobs_of_token.chosen == pytest.approx(float(scores[token]), abs=1e-4)
            assert list(logprobs_of_token.token_ids) == scores.topk(2).indices.tolist()
