"""PART=lora: what adapters cost on a GPU: the kernels against their bytes, and decodes of 64 streams with one, eight
and 64 different adapters of rank 16 on all linear layers, over those of an engine that serves none; last, how long
steps take while 100 adapters are swapped in.

Outputs with an adapter are checked against transformers with the merged weights first.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.figures import QUICK, Figure
from benchmarks.gpu.case import Case
from benchmarks.gpu.generation import add, build, clear, free_memory, generate, judge, prompt, transformers_model
from benchmarks.gpu.lora_adapters import merge, write_adapter
from benchmarks.gpu.machine import DEVICE, DRY, Results, bandwidth, limits, percentile
from benchmarks.gpu.shapes import MODEL
from blade_llm.engine.core import EngineCore
from blade_llm.engine.start import freeze_gc_heap
from blade_llm.kernels.lora import Factors, Slice, TokenGroups
from blade_llm.kernels.lora import triton as kernels
from blade_llm.lora.device_slots import DeviceSlots
from blade_llm.lora.packing import pack
from blade_llm.spec.adapter_layout import SlotLayout
from blade_llm.spec.tensors import LinearMap, LinearPart

RANK = 16
STREAMS, ADAPTERS = (2, (1, 2)) if DRY else (64, (1, 8, 64))
CONTEXT = 16 if DRY else 256
STEPS = 8 if DRY else 64 if QUICK else 200
KV_TOKENS = STREAMS * (CONTEXT + 16 * STEPS)
SWAPS = 4 if DRY else 100
DTYPE = torch.float32 if DRY else torch.bfloat16
"""The interpreter cannot multiply matrices of bf16."""
TARGETS = {1: 0.93, 8: 0.85}
"""Of the base model's rate, by the number of adapters. Sixty-four read a third more than the base model's weights."""


def main() -> int:
    torch.manual_seed(0)
    results = Results("lora")
    results.measure("limits", limits)
    for case in cases():
        results.measure(case.name, case.figures)
    results.measure(f"decode_b{STREAMS}_base", base)
    free_memory()
    adapter = write_adapter(MODEL, RANK)
    names = [f"a{number}" for number in range(max(ADAPTERS))]
    modules = tuple((name, str(adapter)) for name in names)
    results.measure("adapters", with_adapters, results, names, adapter, modules)
    free_memory()
    results.measure("swaps", swapping, names, modules)
    return results.finish()


def engine(**options: Any) -> EngineCore:
    """One that is ready, and whose garbage collections are short."""
    core = build(MODEL, max_num_seqs=STREAMS, max_batch_tokens=2048, kv_tokens=KV_TOKENS, **options)
    gc.collect()
    freeze_gc_heap()
    return core


def base() -> Iterator[Figure]:
    """The rate of an engine that serves no adapters."""
    yield Figure(f"decode_b{STREAMS}_base", decode(engine(cuda_graph_max_tokens=0), [""]), "tokens/s")


def with_adapters(
    results: Results, names: list[str], adapter: Path, modules: tuple[tuple[str, str], ...]
) -> Iterator[Figure]:
    """Whether tokens are right, and rates with none, one and more adapters."""
    core = engine(
        cuda_graph_max_tokens=0,
        enable_lora=True,
        max_loras=max(ADAPTERS),
        max_cpu_loras=max(ADAPTERS),
        max_lora_rank=RANK,
        lora_modules=modules,
    )
    yield Figure("lora_slots", (core.info.memory.lora if core.info.memory else 0) / 2**20, "MiB")
    yield Figure("lora_tokens_right", check(core, names[0], adapter), "share", ">=", 0.99)
    plain = next((figure.value for figure in results.figures if figure.name == f"decode_b{STREAMS}_base"), 0.0)
    for count in (0, *ADAPTERS):
        name = f"decode_b{STREAMS}_lora_{count or 'none'}"
        rate = decode(core, names[:count] or [""])
        yield Figure(name, rate, "tokens/s")
        if plain:
            target = (0.995 if not count else TARGETS.get(count)) if not DRY else None
            yield Figure(f"{name}_over_base", rate / plain, "ratio", *((">=", target) if target else ()))
    if plain and not DRY:
        extra = max(ADAPTERS) * adapter_bytes(core) / bandwidth()
        bound = 1 / (1 + extra * plain / STREAMS)
        yield Figure(f"decode_b{STREAMS}_lora_{max(ADAPTERS)}_bound", bound, "ratio")


def swapping(names: list[str], modules: tuple[tuple[str, str], ...]) -> Iterator[Figure]:
    """Steps while adapters are copied to the device, beside steps without."""
    few = engine(
        cuda_graph_max_tokens=STREAMS + 16,
        enable_lora=True,
        max_loras=2,
        max_cpu_loras=len(names),
        max_lora_rank=RANK,
        lora_modules=modules,
    )
    swaps(few, names[:2])  # once to warm up
    calm, swapped = swaps(few, names[:2]), swaps(few, names)
    yield Figure("lora_swap_step_p99", swapped * 1e3, "ms")
    yield Figure("lora_swap_step_p99_over_calm", swapped / calm, "ratio", *(() if DRY else ("<=", 1.2)))


def swaps(core: EngineCore, names: Sequence[str]) -> float:
    """p99 of a step's seconds, where all streams but one decode with the first adapter, and in the last slot short
    requests with the others come one after another: each copies its adapter to the device, but where it is there."""
    rng = random.Random(4)
    clear(core)
    for _ in range(STREAMS - 1):
        add(core, prompt(MODEL, 8, rng), 14 * STEPS, names[0])
    for _ in range(2 * STREAMS):  # past their prompts
        core.step()
    times = []
    for turn in range(SWAPS):
        request_id, done = add(core, prompt(MODEL, 8, rng), 1, names[1 + turn % (len(names) - 1)]), False
        while not done:
            start = time.perf_counter()
            done = any(output.request_id == request_id for output in core.step())
            times.append(time.perf_counter() - start)
    clear(core)
    return percentile(times, 0.99)


def adapter_bytes(core: EngineCore) -> int:
    """Bytes of one adapter, all of which a decode step with it reads."""
    assert core.adapters is not None
    return core.adapters.infos()[0].nbytes


def check(core: EngineCore, name: str, adapter: Path) -> float:
    """Share of tokens that are right with an adapter, of prompts of several lengths in one batch."""
    rng = random.Random(1)
    prompts = [prompt(MODEL, length, rng) for length in (5, 17, 40)[:STREAMS]]
    answers = generate(core, prompts, 16, adapter=name)
    model = transformers_model(MODEL)
    merge(model, adapter)
    share = judge(model, answers).right
    del model
    free_memory()
    return share


def decode(core: EngineCore, adapters: Sequence[str]) -> float:
    """Tokens a second of all streams in their steady state, the adapters taking turns among them."""
    rng = random.Random(3)
    clear(core)
    lengths = {
        add(core, prompt(MODEL, CONTEXT, rng), 8 * STEPS, adapters[stream % len(adapters)]): 0
        for stream in range(STREAMS)
    }

    def step() -> int:
        outputs = core.step()
        for output in outputs:
            assert output.finish_reason is None, "a stream ended before it was measured"
            lengths[output.request_id] += len(output.token_ids)
        return sum(len(output.token_ids) for output in outputs)

    while not all(lengths.values()):
        step()
    for _ in range(4):
        step()
    tokens, start = 0, time.perf_counter()
    for _ in range(STEPS):
        tokens += step()
    rate = tokens / (time.perf_counter() - start)
    clear(core)
    return rate


def cases() -> Iterator[Case]:
    """Gate and up of the model for 64 tokens with 1, 8 and 64 adapters, and for a prefill with 8."""
    inputs, outputs = MODEL.hidden, (MODEL.inner, MODEL.inner)
    layout = SlotLayout({"up": LinearMap(tuple(LinearPart(f"p{i}", n, inputs) for i, n in enumerate(outputs)))}, RANK)
    slots = DeviceSlots(layout, max(ADAPTERS), DTYPE, DEVICE, deterministic=False)
    generator = torch.Generator(DEVICE).manual_seed(0)

    def random_tensor(*shape: int) -> Tensor:
        return torch.randn(*shape, device=DEVICE, generator=generator).to(DTYPE)

    a, b = random_tensor(2 * RANK, inputs) * inputs**-0.5, [random_tensor(RANK, n) * RANK**-0.5 for n in outputs]
    factors = Factors(a.cpu(), (Slice(0, 0, b[0].cpu()), Slice(outputs[0], RANK, b[1].cpu())), sum(outputs))
    for buffer in range(1, max(ADAPTERS) + 1):
        slots.write(buffer, pack(layout, {"up": factors}, DTYPE, pinned=False))
    table = slots.table("up")
    for tokens, count in ((2, 1), (4, 2)) if DRY else ((64, 1), (64, 8), (64, 64), (2048, 8)):
        x, y = random_tensor(tokens, inputs), torch.zeros(tokens, sum(outputs), dtype=DTYPE, device=DEVICE)
        ids = torch.arange(tokens, dtype=torch.int32, device=DEVICE) % count + 1
        groups = kernels.group_tokens(ids, max(ADAPTERS) + 1, False)

        def run(x: Tensor = x, y: Tensor = y, groups: TokenGroups = groups) -> Tensor:
            kernels.add_lora(x, y.zero_(), table, groups)
            return y

        def reference(x: Tensor = x) -> Tensor:
            shrunk = x.float() @ a.float().t()
            return torch.cat([shrunk[:, :RANK] @ b[0].float(), shrunk[:, RANK:] @ b[1].float()], 1).to(DTYPE)

        weights = count * (a.nbytes + sum(part.nbytes for part in b))
        yield Case(f"lora_{tokens}_of_{count}", run, reference, 2e-2, bytes=weights + 3 * y.nbytes + x.nbytes)


if __name__ == "__main__":
    sys.exit(main())
