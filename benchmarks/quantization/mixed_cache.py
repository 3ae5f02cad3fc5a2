"""Which numbers of a KV cache should get more bits: ``python -m benchmarks.quantization.mixed_cache``.

The model of :mod:`~benchmarks.quantization.train` where attention, in plain torch and fp32, sees keys and values as a
cache would hold them, in forms that the engine has (rows are packed as it packs them) and in forms that it has not:
first tokens and a recent window in more bits than the rest. Two tables: the model as it is, and with one loud pair of
channels in its keys. Large models have such channels in keys, the same for all tokens, and none in values (KIVI, arXiv
2402.02750); a small one has none. docs/decisions/0033 has the figures.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AttentionInterface, LlamaForCausalLM

from benchmarks.figures import QUICK
from benchmarks.quantization.corpus import cache_folder, load_corpus
from benchmarks.quantization.train import encode, trained, windows
from blade_llm.kernels.kv_rows import QuantizedRows
from blade_llm.kv_quant import KVMethod, KVQuant

SCORED = 16 if QUICK else 64
"""Windows."""
LOUD = 8.0
"""How many times larger the loud channels of keys are; those of queries are as many times smaller, so that scores are
what they were but for what is rounded."""
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
    Form("unquantised", None, None),
    *(Form(name, name, name) for name in ("int8", "fp8_e4m3", "int4_affine", "int4")),
    *(Form(f"keys {keys}, values {values}", keys, values)
      for keys, values in (("int8", "int4"), ("fp8_e4m3", "int4"), ("fp8_e5m2", "int4"), ("int4_affine", "int4"),
                           ("int4", "int8"))),
    *(Form(f"int4; int8: first {first}, window {window}", "int4", "int4", "int8", first, window)
      for first, window in ((16, 0), (0, 16), (16, 16), (16, 64))),
)  # fmt: skip


class Attention:
    """Causal attention over what a form keeps."""

    def __init__(self) -> None:
        self.form = FORMS[0]
        self.gain = 1.0
        """Of the pair of channels that turns most slowly with the position."""

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **_: Any
    ) -> tuple[Tensor, None]:
        """As transformers' ``AttentionInterface``: [batch, heads, tokens, head_dim] in, [batch, tokens, heads,
        head_dim] out."""
        form, share = self.form, query.shape[1] // key.shape[1]
        gains = torch.ones(key.shape[-1])
        gains[[key.shape[-1] // 2 - 1, -1]] = self.gain
        query, key = query / gains, key * gains
        places = torch.arange(query.shape[2])
        low_keys = kept(key, form.keys).repeat_interleave(share, 1)
        low_values = kept(value, form.values).repeat_interleave(share, 1)
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
def distributions(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """Log-probabilities of what follows each token but the last, [windows, tokens - 1, vocabulary]."""
    return torch.cat([model(input_ids=some).logits[:, :-1].log_softmax(-1) for some in tokens.split(8)])


def main() -> None:
    parser = argparse.ArgumentParser(description="Perplexity by what of a KV cache has more bits.")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="folder of corpus and model")
    options = parser.parse_args()
    corpus = load_corpus(options.cache)
    folder = trained(options.cache, corpus)
    tokens = windows(encode(Tokenizer.from_file(str(folder / "tokenizer.json")), corpus.held_out))[:SCORED]
    attention = Attention()
    AttentionInterface.register("kept_rows", attention)
    model = LlamaForCausalLM.from_pretrained(folder, attn_implementation="kept_rows", dtype=torch.float32).eval()
    head_dim = model.config.hidden_size // model.config.num_attention_heads
    print(f"{SCORED} windows of {tokens.shape[1]} tokens; tokens held at {CONTEXT} as a multiple of bf16's")
    for attention.gain in (1.0, LOUD):
        print(f"\nkeys with a pair of channels that is {attention.gain:g} times as large\n")
        print("| | KL, 1e-6 nats | perplexity | tokens held |", "|---|---|---|---|", sep="\n")
        attention.form = FORMS[0]
        exact = distributions(model, tokens)
        for attention.form in FORMS:
            found = distributions(model, tokens)
            away = float((exact.exp() * (exact - found)).sum(-1).mean())
            value = math.exp(-float(found.gather(-1, tokens[:, 1:, None]).mean()))
            held = 4 * head_dim / attention.form.bytes_of(head_dim)
            print(f"| {attention.form.name} | {1e6 * away:.0f} | {value:.3f} | {held:.2f} |", flush=True)


if __name__ == "__main__":
    main()
