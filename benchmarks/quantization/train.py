"""Train the model whose perplexity is measured: ``python -m benchmarks.quantization.train``.

Llama's architecture, 2.3 million parameters, byte-level BPE of 2,048 entries, windows of 256 tokens, 3,000 steps of 8
windows of the prose of :mod:`~benchmarks.quantization.corpus`, in fp32 on the CPU. Seeded; a run that was stopped goes
on from its last checkpoint. The same corpus, torch and number of threads give the same model, but for the last bits.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any, Final

import torch
from examples.demo_model.tokenizer import END_ID, PAD_ID, save_tokenizer, train_tokenizer
from examples.demo_model.train import optimizers
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from benchmarks.quantization.corpus import Corpus, cache_folder, load_corpus

VOCAB_SIZE: Final = 2048
WINDOW: Final = 256
"""Tokens of a sequence in training, and of a window that is scored."""
BATCH: Final = 8
STEPS: Final = 3000
"""A quarter of an hour on two cores that nobody else uses. More give a better model."""
SHAPE: Final = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
RATE: Final = 4e-3
"""Of AdamW (embeddings and norms), at its peak; matrices have Muon."""
SAVE_EVERY: Final = 25
"""Steps."""


def build() -> LlamaForCausalLM:
    """A freshly initialised model, in fp32."""
    config = LlamaConfig(
        **SHAPE,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=4 * WINDOW,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
    )
    return LlamaForCausalLM(config)


def encode(tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """The texts' tokens, one after another, int64 [tokens]; ``<|endoftext|>`` stands before each."""
    return torch.tensor([token for each in tokenizer.encode_batch(texts) for token in (PAD_ID, *each.ids)])


def windows(tokens: Tensor, length: int = WINDOW) -> Tensor:
    """[windows, length]; what is left over is dropped."""
    count = len(tokens) // length
    return tokens[: count * length].reshape(count, length)


def schedule(step: int, steps: int) -> float:
    """The share of the peak rate: 40 steps of warm-up, then half a cosine down to 2 %."""
    return min((step + 1) / 40, 0.51 + 0.49 * math.cos(math.pi * step / steps))


def order(count: int, steps: int) -> Tensor:
    """Windows of each step, int64 [steps, BATCH]: every pass in another order."""
    generator = torch.Generator().manual_seed(0)
    passes = -(-steps * BATCH // count)
    mixed = torch.cat([torch.randperm(count, generator=generator) for _ in range(passes)])
    return mixed[: steps * BATCH].reshape(steps, BATCH)


def fit(model: LlamaForCausalLM, tokens: Tensor, checkpoint: Path, steps: int) -> None:
    """Train on windows ``tokens`` ([windows, WINDOW]), from the checkpoint on if there is one."""
    using = optimizers(model, RATE)
    peaks = [group["lr"] for optimizer in using for group in optimizer.param_groups]
    first = _resume(model, using, checkpoint)
    groups = [group for optimizer in using for group in optimizer.param_groups]  # loading a state makes new ones
    batches = order(len(tokens), steps)
    model.train()
    started, running = time.monotonic(), math.nan
    for step in range(first, steps):
        for group, peak in zip(groups, peaks, strict=True):
            group["lr"] = peak * schedule(step, steps)
        batch = tokens[batches[step]]
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in using:
            optimizer.step()
            optimizer.zero_grad()
        running = loss.item() if math.isnan(running) else 0.95 * running + 0.05 * loss.item()
        if (step + 1) % SAVE_EVERY == 0:
            _save(model, using, step + 1, checkpoint)
            took = (time.monotonic() - started) / (step + 1 - first)
            left = took * (steps - step - 1) / 60
            print(
                f"step {step + 1} of {steps}, loss {running:.3f}, {took:.2f} s a step, {left:.1f} min left", flush=True
            )
    model.eval()


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path, about: dict[str, Any]) -> None:
    """Write weights (bf16), configuration, tokenizer and ``training.json``; ``folder`` is whole or not there."""
    staging = folder.with_name(f"{folder.name}.staging")
    shutil.rmtree(staging, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(staging)
    save_tokenizer(tokenizer, staging, 4 * WINDOW)
    (staging / "training.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    staging.rename(folder)


def trained(cache: Path, corpus: Corpus, steps: int = STEPS) -> Path:
    """The folder of the model of this corpus under ``cache``, trained if it is not there yet."""
    digest = f"{corpus.digest[:12]}-{steps}"
    folder = cache / f"model-{digest}"
    if folder.exists():
        return folder
    print(f"training {folder}: a quarter of an hour on two cores, or more where others use them", flush=True)
    started = time.monotonic()
    disable_progress_bar()
    checkpoint = cache / f"checkpoint-{digest}.pt"
    kept = cache / f"tokenizer-{digest}.json"
    if kept.exists():
        tokenizer = Tokenizer.from_file(str(kept))
    else:
        tokenizer = train_tokenizer(corpus.train, VOCAB_SIZE)
        tokenizer.save(str(kept))
    torch.manual_seed(0)
    model = build()
    tokens = windows(_shuffled(tokenizer, corpus))
    fit(model, tokens, checkpoint, steps)
    minutes = (time.monotonic() - started) / 60
    about = {"corpus": corpus.digest, "steps": steps, "minutes": round(minutes, 1), "torch": str(torch.__version__)}
    save(model, tokenizer, folder, about)
    checkpoint.unlink(missing_ok=True)
    kept.unlink(missing_ok=True)
    return folder


def _shuffled(tokenizer: Tokenizer, corpus: Corpus) -> Tensor:
    """Tokens of the training texts, in an order of documents that mixes the packages."""
    generator = torch.Generator().manual_seed(1)
    mixed = [corpus.train[each] for each in torch.randperm(len(corpus.train), generator=generator).tolist()]
    return encode(tokenizer, mixed)


def _resume(model: torch.nn.Module, using: list[torch.optim.Optimizer], checkpoint: Path) -> int:
    """The step to go on with: 0 without a checkpoint."""
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, values in zip(using, state["optimizers"], strict=True):
        optimizer.load_state_dict(values)
    return int(state["step"])


def _save(model: torch.nn.Module, using: list[torch.optim.Optimizer], step: int, checkpoint: Path) -> None:
    staging = checkpoint.with_suffix(".staging")
    state = {"model": model.state_dict(), "optimizers": [each.state_dict() for each in using], "step": step}
    torch.save(state, staging)
    os.replace(staging, checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the model whose perplexity is measured.")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="folder of corpus and model")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    parser.add_argument("--steps", type=int, default=STEPS, help="of 2,048 tokens (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.cache.mkdir(parents=True, exist_ok=True)
    print(trained(options.cache, load_corpus(options.cache), options.steps))


if __name__ == "__main__":
    main()
