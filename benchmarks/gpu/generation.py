"""The engine in this process with dummy weights, and transformers with the same weights to say whether it is right."""

from __future__ import annotations

import itertools
import random
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.machine import DEVICE, DRY
from benchmarks.gpu.shapes import Shape
from blade_llm.config import EngineConfig
from blade_llm.engine.build import build_core
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest
from blade_llm.models.config import load_model_config
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.weights.sources import DummyWeights

DTYPE = torch.float32 if DRY else torch.bfloat16
_ids = itertools.count()


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


def add(core: EngineCore, token_ids: list[int], max_tokens: int) -> str:
    """Queue a greedy request that runs to its full length; its id."""
    request_id = f"gpu-{next(_ids)}"
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, seed=0)
    core.add(GenerateRequest(request_id=request_id, prompt_token_ids=token_ids, sampling=sampling))
    return request_id


def generate(core: EngineCore, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Greedy outputs, all prompts in one batch."""
    outputs: dict[str, list[int]] = {add(core, token_ids, max_tokens): [] for token_ids in prompts}
    while core.has_work:
        for output in core.step():
            outputs[output.request_id] += output.token_ids
    return list(outputs.values())


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


@torch.inference_mode()
def share_right(model: Any, prompts: list[list[int]], outputs: list[list[int]]) -> float:
    """Share of the outputs' tokens that transformers, given the tokens before, likes best or nearly so.

    Nearly: its logit is less than a tenth of a standard deviation below the highest; bf16 alone moves logits so far.
    """
    right = total = 0
    for token_ids, output in zip(prompts, outputs, strict=True):
        logits = model(torch.tensor([token_ids + output[:-1]], device=DEVICE)).logits[0, len(token_ids) - 1 :].float()
        chosen = logits.gather(1, torch.tensor(output, device=DEVICE).unsqueeze(1)).squeeze(1)
        right += int((logits.amax(1) - chosen < 0.1 * logits.std(1)).sum())
        total += len(output)
    return right / total
