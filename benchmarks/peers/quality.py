"""How much the fast types cost: the perplexity of a text under the demo model, beside fp32.

The demo model, because the random one that is timed finds every text equally unlikely. The text is its listed questions
with the answers that it gives in fp32.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F

from benchmarks.figures import Figure
from blade_llm import LLM, SamplingParams
from blade_llm.kernels.paged_attention import RaggedBatch, prepare
from blade_llm.layers.step import StepMetadata
from blade_llm.models.config import load_model_config
from blade_llm.models.llama import Llama
from blade_llm.models.memory import BLOCK_SIZE
from blade_llm.models.registry import load_model
from blade_llm.runner.device import TORCH_DTYPES
from blade_llm.runner.kv_cache import allocate_kv_cache

DEMO: Final = Path(__file__).parents[2] / "examples" / "demo_model"
ALLOWED: Final = {"bfloat16": 0.005, "int8": 0.01, "int4": 0.06}
"""Relative increase of the perplexity over fp32's."""


def perplexity_figures() -> list[Figure]:
    """One for each type and quantisation."""
    texts = _texts()
    reference = perplexity(texts, "float32", "none")
    figures = [Figure("perplexity_fp32", reference, "")]
    for name, allowed in ALLOWED.items():
        dtype, quant = ("bfloat16", "none") if name == "bfloat16" else ("auto", name)
        increase = perplexity(texts, dtype, quant) / reference - 1.0
        figures.append(Figure(f"perplexity_increase_{name}", 100 * increase, "%", "<=", 100 * allowed))
    return figures


@torch.inference_mode()
def perplexity(texts: list[list[int]], dtype: str, quant: str) -> float:
    """``exp`` of the mean negative log-likelihood of all tokens but each text's first."""
    config = load_model_config(DEMO / "model")
    torch_dtype = TORCH_DTYPES["bfloat16" if dtype == "auto" else dtype]
    model = load_model(
        DEMO / "model",
        config,
        load_format="auto",
        max_positions=config.max_position_embeddings,
        device=torch.device("cpu"),
        dtype=torch_dtype,
        quant=quant,
    )
    losses = [
        F.cross_entropy(_logits(model, text, torch_dtype)[:-1].float(), torch.tensor(text[1:]), reduction="sum")
        for text in texts
    ]
    return float((torch.stack(losses).sum() / sum(len(text) - 1 for text in texts)).exp())


def _logits(model: Llama, tokens: list[int], dtype: torch.dtype) -> torch.Tensor:
    config = load_model_config(DEMO / "model")
    count = len(tokens)
    blocks = -(-count // BLOCK_SIZE)
    cache = allocate_kv_cache(config, blocks, BLOCK_SIZE, torch.device("cpu"), dtype)
    batch = RaggedBatch.of(torch.tensor([0]), [count], [count])
    table = torch.arange(blocks, dtype=torch.int32).unsqueeze(0)
    positions = torch.arange(count)
    attention = prepare(batch, table, cache[0][0], config.num_heads)
    step = StepMetadata(positions=positions, slots=positions, attention=attention, kv_cache=cache)
    return model.logits(model(torch.tensor(tokens, dtype=torch.int32), step, None))


def _texts() -> list[list[int]]:
    """Prompt and answer of every listed question."""
    llm = LLM(DEMO / "model", dtype="float32")
    questions = [entry["question"] for entry in json.loads((DEMO / "questions.json").read_text(encoding="utf-8"))]
    asked = [[{"role": "user", "content": question}] for question in questions]
    results = llm.chat(asked, SamplingParams(temperature=0.0, max_tokens=96))
    return [[*result.prompt_token_ids, *result.outputs[0].token_ids] for result in results]
