"""Which numbers of a KV cache should get more bits: ``python -m benchmarks.quantization.mixed_cache``.

Perplexity of the model of :mod:`~benchmarks.quantization.train` where attention, in plain torch and fp32, sees keys and
values as a cache would hold them, in forms that the engine has (a row is packed as it packs it) and in forms that it has
not: first tokens and a recent window in more bits than the rest. Docs/decisions/0033 has the figures.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, LlamaForCausalLM

from benchmarks.figures import QUICK
from benchmarks.quantization.corpus import cache_folder, load_corpus
from benchmarks.quantization.train import encode, trained, windows
from blade_llm.kernels.kv_rows import QuantizedRows
from blade_llm.kv_quant import KVMethod, KVQuant

SCORED = 32 if QUICK else 128
"""Windows."""
CONTEXT = 4096
"""Tokens for which bytes are counted."""


@dataclass(frozen=True)
class Form:
    """Which method keys and values have that a query sees. Empty: they are not quantised."""

    name: str
    keys: KVMethod | None
    values: KVMethod | None
    high: KVMethod | None = None
    """Of the first tokens, and of those in the query's own window."""
    first: int = 0
    window: int = 0
    """Tokens from one multiple of it to the next: a sliding one could not go with a prefix cache."""

    def bytes_of(self, head_dim: int) -> float:
        """Bytes of a token and head, key and value, at ``CONTEXT`` tokens; half a window is filled on average."""

        def row(method: KVMethod | None) -> int:
            return 2 * head_dim if method is None else KVQuant(method).row_bytes(head_dim)

        low = row(self.keys) + row(self.values)
        more = min(CONTEXT, self.first + self.window / 2) / CONTEXT if self.high else 0
        return low + more * (2 * row(self.high) - low)


FORMS = (
    Form("fp32", None, None),
    *(Form(name, name, name) for name in ("int8", "fp8_e4m3", "int4_affine", "int4")),
    *(Form(f"keys {keys}, values {values}", keys, values)
      for keys, values in (("int8", "int4"), ("fp8_e4m3", "int4"), ("fp8_e5m2", "int4"), ("int8", "int4_affine"),
                           ("int4_affine", "int4"), ("int4", "int4_affine"), ("int4", "int8"))),
    *(Form(f"int4, int8 of first {first} and windows of {window}", "int4", "int4", "int8", first, window)
      for first, window in ((16, 0), (0, 16), (16, 16), (16, 64), (16, 128))),
)  # fmt: skip


class Attention:
    """Causal attention over what a form keeps."""

    def __init__(self) -> None:
        self.form = FORMS[0]

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **_: Any
    ) -> tuple[Tensor, None]:
        """As transformers' ``AttentionInterface``: [batch, heads, tokens, head_dim] in, [batch, tokens, heads,
        head_dim] out."""
        form, share = self.form, query.shape[1] // key.shape[1]
        places = torch.arange(query.shape[2])
        low_keys, low_values = (kept(*each).repeat_interleave(share, 1) for each in ((key, form.keys), (value, form.values)))
        scores = query @ low_keys.transpose(2, 3)
        high = torch.zeros(len(places), len(places), dtype=torch.bool)
        if form.high:
            high |= places < form.first
            if form.window:
                high |= places.unsqueeze(1) // form.window == places // form.window
            scores = torch.where(high, query @ kept(key, form.high).repeat_interleave(share, 1).transpose(2, 3), scores)
        scores = (scores * scaling).masked_fill(places > places.unsqueeze(1), -math.inf).softmax(-1)
        out = scores.masked_fill(high, 0.0) @ low_values
        if form.high:
            out += scores.masked_fill(~high, 0.0) @ kept(value, form.high).repeat_interleave(share, 1)
        return out.transpose(1, 2).contiguous(), None


def kept(rows: Tensor, method: KVMethod | None) -> Tensor:
    """Rows as a cache gives them back."""
    if method is None:
        return rows
    packed = QuantizedRows(KVQuant(method), rows.shape[-1], torch.float32)
    return packed.dequantize(packed.quantize(rows))


@torch.inference_mode()
def loss(model: LlamaForCausalLM, tokens: Tensor) -> float:
    """Mean negative log-likelihood of ``tokens``, [windows, tokens]."""
    losses = [float(model(input_ids=some, labels=some).loss) for some in tokens.split(8)]
    return math.fsum(losses) / len(losses)


def main() -> None:
    parser = argparse.ArgumentParser(description="Perplexity by what of a KV cache has more bits.")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="folder of corpus and model")
    options = parser.parse_args()
    corpus = load_corpus(options.cache)
    folder = trained(options.cache, corpus)
    from tokenizers import Tokenizer

    tokens = windows(encode(Tokenizer.from_file(str(folder / "tokenizer.json")), corpus.held_out))[:SCORED]
    attention = Attention()
    AttentionInterface.register("kept_rows", attention)
    model = LlamaForCausalLM.from_pretrained(folder, attn_implementation="kept_rows", dtype=torch.float32).eval()
    head_dim = model.config.hidden_size // model.config.num_attention_heads
    plain = 0.0
    print(f"{SCORED} windows of {tokens.shape[1]} tokens; tokens held at {CONTEXT} as a multiple of bf16's\n")
    print("| | perplexity | change | tokens held |", "|---|---|---|---|", sep="\n")
    for attention.form in FORMS:
        value = loss(model, tokens)
        plain = plain or value
        held = 4 * head_dim / attention.form.bytes_of(head_dim)
        shown = f"{math.exp(value):.3f} | {100 * math.expm1(value - plain):+.3f} % | {held:.2f} ×"
        print(f"| {attention.form.name} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
