"""A context of 131,072 tokens on a CPU: ``python -m benchmarks.engine.long_context``.

The model is a small random one (2 layers, width 32, Llama 3's rotation), so that attention over the context is most of
the work. Printed are the time to the first token, the memory on top of the loaded engine, and how long a request that
was given up keeps the engine.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.figures import QUICK, Figure, report
from blade_llm.config import EngineConfig
from blade_llm.engine.build import build_core
from blade_llm.engine.messages import GenerateRequest
from blade_llm.sampling.parameters import SamplingParams

LENGTH = 131_072
HIDDEN, INNER, LAYERS, HEADS, HEAD_DIM, VOCABULARY = 32, 64, 2, 2, 16, 199
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": HEAD_DIM,
    "vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "rope_theta": 500_000.0, "eos_token_id": 0, "torch_dtype": "float32", "hidden_act": "silu",
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192},
}  # fmt: skip


def main() -> int:
    length = LENGTH // 8 if QUICK else LENGTH
    with tempfile.TemporaryDirectory() as folder:
        _write_model(Path(folder))
        config = EngineConfig(
            model=folder, served_names=("m",), dtype="float32", max_num_seqs=1, kv_cache_bytes=64 << 20
        )
        core = build_core(config)
    prompt = torch.randint(2, VOCABULARY, (length - 1,), generator=torch.Generator().manual_seed(0)).tolist()
    sampling = SamplingParams(temperature=0.0, max_tokens=1)
    core.add(GenerateRequest(request_id="given up", prompt_token_ids=prompt, sampling=sampling))
    for _ in range(3):
        core.step()
    started = time.perf_counter()
    core.abort(["given up"])
    core.step()
    given_up = time.perf_counter() - started
    before, started = _peak_memory(), time.perf_counter()
    core.add(GenerateRequest(request_id="whole", prompt_token_ids=prompt[::-1], sampling=sampling))
    longest, steps = 0.0, 0
    while core.has_work:
        begun = time.perf_counter()
        core.step()
        longest, steps = max(longest, time.perf_counter() - begun), steps + 1
    taken = time.perf_counter() - started
    return report("long_context", [
        Figure("tokens", length, ""),
        Figure("time_to_first_token", taken, "s"),
        Figure("longest_step", longest, "s"),
        Figure("steps", steps, ""),
        Figure("peak_memory_on_top", (_peak_memory() - before) / 2**20, "MiB"),
        Figure("given_up_after", given_up, "s"),
    ])  # fmt: skip


def _write_model(folder: Path) -> None:
    torch.manual_seed(0)
    save_file(dict(_weights()), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")


def _weights() -> Iterator[tuple[str, torch.Tensor]]:
    yield "model.embed_tokens.weight", torch.randn(VOCABULARY, HIDDEN)
    yield "model.norm.weight", torch.ones(HIDDEN)
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN), "self_attn.k_proj": (HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (HEAD_DIM, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
    }  # fmt: skip
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}.{name}.weight", torch.ones(HIDDEN)
        for name, shape in shapes.items():
            yield f"{prefix}.{name}.weight", 0.2 * torch.randn(shape)


def _peak_memory() -> int:
    """Bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
