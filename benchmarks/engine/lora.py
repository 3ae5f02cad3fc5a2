"""What adapters cost: ``python -m benchmarks.engine.lora``.

Sixteen prompts of 128 tokens with 128 tokens of output each, on the model of ``make bench`` (Qwen2.5-0.5B's shape,
random weights), whose adapters have rank 16 on all linear layers. Rounds with one adapter, with eight different ones,
and without any take turns, so that all see the same machine; so do those of an engine that serves no adapters at all,
for what it costs that one may come. Last, 64 requests with as many adapters on eight slots, beside 64 without.

``PEERS=vllm``: vLLM for CPUs with the same model, adapters and prompts, its rounds between ours.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.figures import QUICK, Figure, report
from benchmarks.peers.model import random_model
from benchmarks.peers.peers import CACHE, VLLM_LORA
from benchmarks.peers.running import Running, worker_options
from benchmarks.peers.shapes import KNOWN_TOKENS, QWEN2
from blade_llm.config import EngineConfig
from blade_llm.engine.build import build_core
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest
from blade_llm.lora.targets import Targets
from blade_llm.models.implementation import read_model_config
from blade_llm.sampling.parameters import SamplingParams

BATCH, LENGTH, RANK = 16, 32 if QUICK else 128, 16
ROUNDS = 1 if QUICK else 3
MANY = 32 if QUICK else 64


def main() -> int:
    model = random_model(CACHE / "models" / QWEN2.name)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        adapters = _write_adapters(model, Path(scratch), MANY)
        peer = None
        if os.environ.get("PEERS") == "vllm":
            options = {**worker_options(QWEN2), "rank": RANK, "adapters": adapters, "max_length": 512}
            peer = stack.enter_context(Running(VLLM_LORA, model, **options))
        plain, serving = _core(model), _core(model, enable_lora=True, lora_allowed_roots=(scratch,), max_cpu_loras=MANY)
        one, eight = [adapters[0]] * BATCH, [adapters[number % 8] for number in range(BATCH)]
        kinds: dict[str, tuple[EngineCore, Sequence[str]]] = {
            "without": (plain, [""] * BATCH),
            "none_in_use": (serving, [""] * BATCH),
            "one": (serving, one),
            "eight": (serving, eight),
        }
        for core, names in kinds.values():
            _round(core, names, length=4)
        beside = {"without": [""] * BATCH, "one": one, "eight": eight}
        for names in beside.values() if peer is not None else ():
            _peer_round(peer, names, length=4)
        seconds: dict[str, list[float]] = defaultdict(list)
        for _ in range(ROUNDS):
            for kind, (core, names) in kinds.items():
                seconds[kind].append(_round(core, names))
                if peer is not None and kind in beside:
                    seconds[f"vllm_{kind}"].append(_peer_round(peer, beside[kind]))
        base = _round(plain, [""] * MANY)
        many = _round(serving, adapters)
        vllm_many = _peer_round(peer, adapters) if peer is not None else 0.0
    tokens = BATCH * LENGTH

    def ratio(kind: str) -> float:
        return statistics.median(b / s for b, s in zip(seconds["without"], seconds[kind], strict=True))

    return report(
        "lora_beside_vllm" if peer is not None else "lora",  # a peer in memory disturbs ours
        [
            Figure("base", tokens / statistics.median(seconds["without"]), "tokens/s"),
            Figure("none_in_use", ratio("none_in_use"), "of base", ">=", 0.995),
            Figure("one_adapter", ratio("one"), "of base", ">=", 0.93),
            Figure("eight_adapters", ratio("eight"), "of base", ">=", 0.85),
            Figure(f"{MANY}_adapters_on_8_slots", base / many, "of base", ">=", 0.6),
            *(_beside_vllm(seconds, many, vllm_many) if vllm_many else ()),
        ],
    )


def _beside_vllm(seconds: Mapping[str, Sequence[float]], many: float, vllm_many: float) -> Iterator[Figure]:
    """Our rate over vLLM's."""
    for kind in ("without", "one", "eight"):
        theirs = seconds[f"vllm_{kind}"]
        yield Figure(f"vllm_{kind}", BATCH * LENGTH / statistics.median(theirs), "tokens/s")
        ratio = statistics.median(t / o for o, t in zip(seconds[kind], theirs, strict=True))
        yield Figure(f"{kind}_vs_vllm", ratio, "x", ">=", 1.0)
    yield Figure(f"vllm_{MANY}_adapters_on_8_slots", MANY * LENGTH / vllm_many, "tokens/s")
    yield Figure(f"{MANY}_adapters_on_8_slots_vs_vllm", vllm_many / many, "x", ">=", 1.0)


def _core(model: Path, **options: object) -> EngineCore:
    config = EngineConfig(
        model=str(model),
        served_names=("m",),
        max_model_len=512,
        max_num_seqs=BATCH,
        kv_cache_bytes=512 << 20,
        enable_prompt_cache=False,
        **options,  # type: ignore[arg-type]
    )
    return build_core(config)


def _write_adapters(model: Path, folder: Path, count: int) -> list[str]:
    """Random adapters for all linear layers."""
    targets = Targets.of(read_model_config(model))
    names = []
    for number in range(count):
        own = folder / str(number)
        own.mkdir()
        tensors = {}
        for module in targets.modules:
            part = targets.find(module).part
            tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn(RANK, part.inputs).bfloat16() * 0.02
            tensors[f"base_model.model.{module}.lora_B.weight"] = torch.randn(part.outputs, RANK).bfloat16() * 0.02
        save_file(tensors, own / "adapter_model.safetensors")
        modules = sorted({module.rpartition(".")[2] for module in targets.modules})
        config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": modules}
        (own / "adapter_config.json").write_text(json.dumps(config))
        names.append(str(own))
    return names


def _prompts(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, KNOWN_TOKENS, (128,), generator=generator).tolist() for _ in range(count)]


def _peer_round(peer: Running, adapters: Sequence[str], length: int = LENGTH) -> float:
    """The same by a peer."""
    return peer.generate(_prompts(len(adapters)), length, adapters).seconds


def _round(core: EngineCore, adapters: Sequence[str], length: int = LENGTH) -> float:
    """Seconds for one request with each of ``adapters``."""
    sampling = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True, seed=1)
    prompts = _prompts(len(adapters))
    started = time.perf_counter()
    for number, (adapter, prompt) in enumerate(zip(adapters, prompts, strict=True)):
        core.add(GenerateRequest(request_id=str(number), prompt_token_ids=prompt, sampling=sampling, adapter=adapter))
    while core.has_work:
        for output in core.step():
            assert output.error is None, output.error
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
