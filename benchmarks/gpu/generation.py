"""The engine in this process with dummy weights, and transformers with the same weights to say whether it is right."""

from __future__ import annotations

import itertools
import json
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.gpu.machine import DEVICE, DRY
from benchmarks.gpu.shapes import Shape
from blade_llm.config import EngineConfig
from blade_llm.engine.build import build_core
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest
from blade_llm.lora.targets import Targets
from blade_llm.models.config import load_model_config
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.weights.sources import DummyWeights

DTYPE = torch.float32 if DRY else torch.bfloat16
_numbers = itertools.count()
_ids: list[str] = []
"""Of the requests since the last :func:`clear`."""


def build(shape: Shape, *, max_num_seqs: int, max_batch_tokens: int, kv_tokens: int, **options: Any) -> EngineCore:
    """An engine that is ready, without prefix cache: random prompts must not help each other."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-model-"))
    shape.write(folder)
    config = EngineConfig(
        model=str(folder),
        served_names=(shape.name,),
        dtype="float32" if DRY else "bfloat16",
        load_format="dummy",
        max_num_seqs=max_num_seqs,
        max_batch_tokens=max_batch_tokens,
        kv_cache_bytes=kv_tokens * shape.kv_bytes * (2 if DRY else 1),
        enable_prompt_cache=False,
        **options,
    )
    return build_core(config)


def prompt(shape: Shape, length: int, rng: random.Random) -> list[int]:
    return [rng.randrange(shape.vocabulary) for _ in range(length)]


def add(core: EngineCore, token_ids: list[int], max_tokens: int, adapter: str = "", logprobs: bool = False) -> str:
    """Queue a greedy request that runs to its full length; its id."""
    request_id = f"gpu-{next(_numbers)}"
    _ids.append(request_id)
    sampling = SamplingParams(
        max_tokens=max_tokens, temperature=0.0, ignore_eos=True, seed=0, logprobs=0 if logprobs else None
    )
    core.add(GenerateRequest(request_id=request_id, prompt_token_ids=token_ids, sampling=sampling, adapter=adapter))
    return request_id


def write_adapter(shape: Shape, folder: Path, rank: int) -> Path:
    """Save a random LoRA adapter for all linear layers, as PEFT does."""
    targets = Targets.of(shape.write(folder.parent / "base"))
    folder.mkdir()
    names = list(targets.modules)
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": names, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**fields, "task_type": "CAUSAL_LM"}), encoding="utf-8")
    tensors = {}
    for name in names:
        part = targets.find(name).part
        for letter, size in (("A", (rank, part.inputs)), ("B", (part.outputs, rank))):
            tensors[f"base_model.model.{name}.lora_{letter}.weight"] = (torch.randn(size) * 0.01).to(DTYPE)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def clear(core: EngineCore) -> None:
    """Forget all requests, also those of a measurement that failed."""
    core.abort(_ids)
    _ids.clear()
    while core.has_work:
        core.step()


@dataclass
class Answer:
    """A greedy output."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Of the tokens, where they were asked for."""


def generate(core: EngineCore, prompts: list[list[int]], max_tokens: int, logprobs: bool = False) -> list[Answer]:
    """Greedy outputs, all prompts in one batch."""
    answers = {add(core, token_ids, max_tokens, logprobs=logprobs): Answer(token_ids) for token_ids in prompts}
    while core.has_work:
        for output in core.step():
            answer = answers[output.request_id]
            answer.tokens += output.token_ids
            answer.logprobs += [each.chosen for each in output.logprobs or []]
    return list(answers.values())


def transformers_model(shape: Shape) -> Any:
    """transformers' implementation with the engine's dummy weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = Path(tempfile.mkdtemp(prefix="gpu-model-"))
    config = shape.write(folder)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=DTYPE)
    weights = DummyWeights(load_model_config(folder), DEVICE, DTYPE)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights.tensor(name))
    assert config.num_layers == shape.layers
    return model.eval()


@dataclass(frozen=True)
class Judgement:
    """What transformers says about answers."""

    right: float
    """Share of the tokens that it likes best in fp32, or whose logit is as near to the best as its own logits in bf16
    are to those in fp32 (four standard deviations)."""
    error: float
    """Of the tokens' log-probabilities, root mean square, against those in fp32; 0 where the answers have none."""
    transformers_error: float
    """The same of transformers in bf16."""


@torch.inference_mode()
def judge(model: Any, answers: list[Answer]) -> Judgement:
    """Compare ``answers`` with ``model``, which has fp32 weights afterwards."""

    def logits() -> Tensor:
        """[tokens of all answers, vocabulary] fp32"""
        return torch.cat(
            [
                model(torch.tensor([one.prompt + one.tokens[:-1]], device=DEVICE)).logits[0, len(one.prompt) - 1 :]
                for one in answers
            ]
        ).float()

    own = logits()
    model.float()
    exact = logits()
    tokens = torch.tensor([token for one in answers for token in one.tokens], device=DEVICE).unsqueeze(1)
    near = max(4 * float((own - exact).std()), 1e-3 * float(exact.std()))
    right = exact.amax(1) - exact.gather(1, tokens).squeeze(1) < near
    expected, theirs = (each.log_softmax(1).gather(1, tokens).squeeze(1) for each in (exact, own))
    ours = torch.tensor([logprob for one in answers for logprob in one.logprobs], device=DEVICE)

    def error(logprobs: Tensor) -> float:
        return float((logprobs - expected).square().mean().sqrt())

    return Judgement(float(right.float().mean()), error(ours) if len(ours) else 0.0, error(theirs))
