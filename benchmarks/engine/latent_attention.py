"""Latent attention of DeepSeek-V2-Lite's shape on a CPU: one layer's attention, projections included, in the absorbed
form and, where the engine would take it, in the expanded one.

Run it as ``python -m benchmarks.engine.latent_attention [--threads N]``. Weights are random; the forms take turns, and
the fastest run of each counts. A speed counts only where both results agree.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.figures import QUICK, Figure, report
from blade_llm.kernels import native
from blade_llm.kernels.paged_attention import RaggedBatch, prepare
from blade_llm.layers.latent_attention import LatentAttention, key_matrices, value_matrices
from blade_llm.layers.latent_prefill import expanded_prefills
from blade_llm.layers.linear import Linear
from blade_llm.layers.rope import RotaryTable
from blade_llm.layers.step import Rotation, StepMetadata
from blade_llm.models.config import KVSpec
from blade_llm.runner.kv_cache import allocate_kv_cache
from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.norm import NormSpec
from blade_llm.spec.rope import RopeSpec

HIDDEN, BLOCK = 2048, 16
SPEC = LatentAttentionSpec(
    16, 512, 128, 64, 128, scale=192**-0.5, rope=RopeSpec(1e4, 64, pairing="neighbours"), latent_norm=NormSpec(1e-6)
)
CHUNKS = (
    ((64, 64), (256, 256)) if QUICK else ((64, 64), (256, 256), (1024, 1024), (2048, 2048), (256, 2048), (2048, 8192))
)
"""New tokens, and tokens of the sequence with them."""
DECODES = ((1, 128),) if QUICK else ((1, 128), (1, 1024), (8, 1024))
"""Sequences, and tokens of each."""
TURNS = 2 if QUICK else 5
BOUND = 0.02
"""Relative difference of the forms in bf16."""


def attention() -> LatentAttention:
    """The layer, with random weights."""
    torch.manual_seed(0)

    def random(*shape: int) -> Tensor:
        return (torch.randn(shape) * shape[-1] ** -0.5).bfloat16()

    down = Linear(random(SPEC.down_size, HIDDEN))
    output = Linear(random(HIDDEN, SPEC.num_heads * SPEC.value_dim))
    kv_up = random(SPEC.num_heads * (SPEC.nope_dim + SPEC.value_dim), SPEC.latent_dim)
    norm = torch.ones(SPEC.latent_dim).bfloat16()
    return LatentAttention(
        0, SPEC, down, None, norm, key_matrices(SPEC, kv_up), value_matrices(SPEC, kv_up), output, deterministic=False
    )


def step_of(sequences: int, count: int, length: int) -> tuple[Tensor, Rotation, StepMetadata]:
    """Hidden states, angles and metadata of a step in the absorbed form."""
    blocks = -(-length // BLOCK)
    device, dtype = torch.device("cpu"), torch.bfloat16
    cache = allocate_kv_cache(KVSpec(1, 1, SPEC.head_dim, SPEC.latent_dim), sequences * blocks, BLOCK, device, dtype)
    cache[0][0].normal_()
    table = torch.arange(sequences * blocks, dtype=torch.int32).view(sequences, blocks)
    batch = RaggedBatch.of(torch.arange(sequences), [count] * sequences, [length] * sequences)
    attends = prepare(batch, table, cache[0][0], SPEC.num_heads)
    positions = torch.arange(length - count, length).repeat(sequences)
    slots = (torch.arange(sequences).unsqueeze(1) * blocks * BLOCK + torch.arange(length - count, length)).flatten()
    rotation = RotaryTable(SPEC.rope, SPEC.rope_dim, length, device)(positions)
    step = StepMetadata(positions, slots, attends, cache)
    expanded = expanded_prefills(SPEC, batch, table, cache[0][0])
    return torch.randn(sequences * count, HIDDEN).to(dtype), rotation, replace(step, expanded=expanded)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    torch.set_num_threads(parser.parse_args().threads)
    print(f"instruction set {native.isa()}, {torch.get_num_threads()} threads", flush=True)
    layer, figures = attention(), []
    for sequences, count, length in [*((1, *chunk) for chunk in CHUNKS), *((n, 1, length) for n, length in DECODES)]:
        x, rotation, step = step_of(sequences, count, length)
        forms = {"absorbed": replace(step, expanded=None)}
        if step.expanded is not None:
            forms["expanded"] = step
        results = {name: layer(x, rotation, form).float() for name, form in forms.items()}
        exact = results["absorbed"]
        if any(float((result - exact).norm() / exact.norm()) > BOUND for result in results.values()):
            print(f"{count} of {length}: the forms differ", file=sys.stderr)
            return 1
        best = dict.fromkeys(forms, float("inf"))
        for _ in range(TURNS):
            for name, form in forms.items():
                start = time.perf_counter()
                layer(x, rotation, form)
                best[name] = min(best[name], time.perf_counter() - start)
        what = f"{sequences}x{count}_of_{length}"
        figures += [Figure(f"latent_{name}_{what}", took * 1e3, "ms") for name, took in best.items()]
        print(what, *(f"{name} {took * 1e3:.2f} ms" for name, took in best.items()), flush=True)
    return report("latent_attention", figures, isa=native.isa(), threads=str(torch.get_num_threads()))


if __name__ == "__main__":
    sys.exit(main())
