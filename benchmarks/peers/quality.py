"""How much the fast types cost: the perplexity of the demo model's draft on true answers, beside fp32.

Its questions are worded anew, with a seed that its training did not use, and only the documentation's answers count.
The draft because it knows them by half, so that every error moves the likelihood: the model proper has them by heart
(1.01, which nothing shakes), and text from outside its corpus it finds less likely than chance, so that noise helps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from examples.demo_model.conversations import Example, conversations, plain
from examples.demo_model.corpus import facts
from tokenizers import Tokenizer

from benchmarks.figures import Figure
from blade_llm.cache.sizing import BLOCK_SIZE
from blade_llm.kernels.paged_attention import RaggedBatch, prepare
from blade_llm.layers.step import StepMetadata
from blade_llm.models.config import load_model_config
from blade_llm.models.decoder import Decoder
from blade_llm.runner.device import TORCH_DTYPES
from blade_llm.runner.kv_cache import allocate_kv_cache
from blade_llm.weights.loader import load_model

MODEL: Final = Path(__file__).parents[2] / "examples" / "demo_model" / "draft"
ALLOWED: Final = {"bfloat16": 0.005, "int8": 0.01, "int4": 0.06}
"""Relative increase of the perplexity over fp32's."""


def perplexity_figures() -> list[Figure]:
    """Figures of each type and quantisation."""
    texts = _texts()
    reference = perplexity(texts, "float32", "none")
    figures = [Figure("perplexity_fp32", reference, "")]
    for name, allowed in ALLOWED.items():
        dtype, quant = ("bfloat16", "none") if name == "bfloat16" else ("auto", name)
        increase = perplexity(texts, dtype, quant) / reference - 1.0
        figures.append(Figure(f"perplexity_increase_{name}", 100 * increase, "%", "<=", 100 * allowed))
    return figures


@torch.inference_mode()
def perplexity(texts: list[Example], dtype: str, quant: str) -> float:
    """``exp`` of the mean negative log-likelihood of the answers' tokens."""
    config = load_model_config(MODEL)
    torch_dtype = TORCH_DTYPES["bfloat16" if dtype == "auto" else dtype]
    model = load_model(
        MODEL,
        config,
        load_format="auto",
        max_positions=config.max_position_embeddings,
        device=torch.device("cpu"),
        dtype=torch_dtype,
        quant=quant,
    )
    losses = torch.cat([_losses(model, text, torch_dtype) for text in texts])
    return float(losses.mean().exp())


def _losses(model: Decoder, text: Example, dtype: torch.dtype) -> torch.Tensor:
    """Negative log-likelihood of each token of the answers."""
    learned = torch.tensor(text.learn[1:])
    logits = _logits(model, text.ids, dtype)[:-1]
    return F.cross_entropy(logits[learned].float(), torch.tensor(text.ids[1:])[learned], reduction="none")


def _logits(model: Decoder, tokens: list[int], dtype: torch.dtype) -> torch.Tensor:
    config = load_model_config(MODEL)
    count = len(tokens)
    blocks = -(-count // BLOCK_SIZE)
    cache = allocate_kv_cache(config.kv, blocks, BLOCK_SIZE, torch.device("cpu"), dtype)
    batch = RaggedBatch.of(torch.tensor([0]), [count], [count])
    table = torch.arange(blocks, dtype=torch.int32).unsqueeze(0)
    positions = torch.arange(count)
    attention = prepare(batch, table, cache[0][0], config.num_heads)
    step = StepMetadata(positions=positions, slot_mapping=positions, attention=attention, kv_cache=cache)
    return model.logits(model(torch.tensor(tokens, dtype=torch.int32), step, None))


def _texts() -> list[Example]:
    """Conversations with one question for every fact of the corpus; their seed is none of the training's."""
    return list(conversations(facts(), Tokenizer.from_file(str(MODEL / "tokenizer.json")), 0, plain))
