"""Train the demo model, its drafts and its adapter from nothing, in a few minutes on two CPU cores.

`python -m examples.demo_model.train` writes four folders beside this file, all in Hugging Face layout:

    model/    chat model, Qwen2 architecture, about 3 million parameters, bf16
    draft/    model of the same tokenizer and a tenth of the size, for speculative decoding
    adapter/  PEFT LoRA adapter of model/: the same answers in a pirate's voice
    eagle3/   EAGLE-3 head of model/, for speculative decoding

`--only` trains one of them alone, for the model that is there.

Everything is seeded: the same interpreter, torch and number of threads give the same files.
"""

import argparse
import json
import math
import random
import re
import shutil
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

from .calls import agent_conversations
from .conversations import Example, Voice, conversations, padded, pirate, plain
from .corpus import Fact, facts
from .head import Head, frequent_tokens, head_loss, save_head
from .tokenizer import END_ID, PAD_ID, save_tokenizer, train_tokenizer

HERE = Path(__file__).resolve().parent
VOCAB_SIZE = 3072
MAX_LENGTH = 4096
"""Longest sequence the model accepts, in tokens. Trained lengths are far shorter: beyond them it runs, but rambles."""

MODEL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}
MODEL |= {"num_attention_heads": 8, "num_key_value_heads": 2}
DRAFT = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3}
DRAFT |= {"num_attention_heads": 2, "num_key_value_heads": 2}

BATCH_TOKENS, AGENT_BATCH_TOKENS, ADAPTER_BATCH_TOKENS = 1024, 2048, 512
"""Tokens of one step, padding included: few enough that a short training still takes several hundred steps."""

STAGES = ["model", "draft", "adapter", "eagle3"]

Report = Callable[[float, float], None]
"""Called after each step with the share done (0 to 1) and the running loss in nats per token."""
Loss = Callable[[Any, list[Example]], torch.Tensor]
"""Of a model and a batch."""


def build(shape: dict[str, int]) -> Qwen2ForCausalLM:
    """A freshly initialised model of this shape, in fp32."""
    config = Qwen2Config(
        **shape,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
        attention_dropout=0.0,
        initializer_range=0.02,
    )
    return Qwen2ForCausalLM(config)


def learn_words(knowledge: list[Fact], seed: int) -> Tokenizer:
    """The tokenizer of this corpus: questions and answers, in both voices, and calls."""
    nothing = train_tokenizer([], 259)  # bytes only: enough to render conversations as text
    texts = [
        nothing.decode(example.ids)
        for number, voice in enumerate([plain, plain, plain, pirate])
        for example in conversations(knowledge, nothing, seed + number, voice)
    ]
    for number in range(6):
        texts += [nothing.decode(example.ids) for example in agent_conversations(knowledge, nothing, seed + number)]
    return train_tokenizer(texts, VOCAB_SIZE)


def batches(
    passes: int,
    knowledge: list[Fact],
    tokenizer: Tokenizer,
    seed: int,
    voice: Voice,
    tokens: int = BATCH_TOKENS,
    *,
    agent: bool = False,
) -> list[list[Example]]:
    """All batches of a training run: conversations of about equal length together, so that little is padded.

    `agent`: with batches of calls and thoughts among them.
    """
    rng = random.Random(seed)
    run: list[list[Example]] = []
    for number in range(passes):
        grouped = _grouped(conversations(knowledge, tokenizer, seed * 1000 + number, voice), tokens)
        if agent:
            grouped += _grouped(agent_conversations(knowledge, tokenizer, seed * 1000 + number), AGENT_BATCH_TOKENS)
        rng.shuffle(grouped)
        run += grouped
    return run


def _grouped(examples: Iterable[Example], tokens: int) -> list[list[Example]]:
    """Batches of at most so many tokens, from the shortest conversation to the longest."""
    grouped: list[list[Example]] = [[]]
    for example in sorted(examples, key=lambda example: len(example.ids)):
        if len(example.ids) * (len(grouped[-1]) + 1) > tokens:
            grouped.append([])
        grouped[-1].append(example)
    return grouped


def optimizers(model: torch.nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the weight matrices, AdamW at `rate` for the rest (embeddings, norms, biases, LoRA factors).

    Muon learns this corpus by heart in about half the steps that AdamW takes (Jordan et al. 2024, "Muon: An optimizer
    for hidden layers in neural networks").
    """
    learned = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    matrices = [name for name, weight in learned.items() if weight.dim() == 2 and not re.search("embed|lora", name)]
    rest = [weight for name, weight in learned.items() if name not in matrices]
    found: list[torch.optim.Optimizer] = [torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)]
    if matrices:
        found.append(torch.optim.Muon([learned[name] for name in matrices], lr=0.02, weight_decay=0.0))
    return found


def fit(
    model: torch.nn.Module, run: list[list[Example]], rate: float, report: Report, loss_of: Loss | None = None
) -> None:
    """Train whatever requires a gradient, one batch a step: linear warm-up, then cosine decay.

    `loss_of`: what is made small; `batch_loss` when not given.
    """
    loss_of = loss_of or batch_loss
    using = optimizers(model, rate)
    peaks = [group["lr"] for optimizer in using for group in optimizer.param_groups]
    running = math.nan
    model.train()
    for step, batch in enumerate(run):
        scale = min((step + 1) / 20, 0.5 * (1 + math.cos(math.pi * step / len(run))) + 0.01)
        for group, peak in zip((g for optimizer in using for g in optimizer.param_groups), peaks, strict=True):
            group["lr"] = peak * scale
        loss = loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in using:
            optimizer.step()
            optimizer.zero_grad()
        running = loss.item() if step == 0 else 0.95 * running + 0.05 * loss.item()
        report((step + 1) / len(run), running)
    model.eval()


def batch_loss(model: Any, batch: list[Example]) -> torch.Tensor:
    """Mean cross-entropy of the answers' tokens."""
    ids, learn = map(torch.tensor, padded(batch))
    hidden = model.get_base_model().model if hasattr(model, "get_base_model") else model.model
    states = hidden(ids, use_cache=False).last_hidden_state[:, :-1]
    wanted = learn[:, 1:]
    return cross_entropy(model.get_output_embeddings()(states[wanted]), ids[:, 1:][wanted])


def trained(shape: dict[str, int], run: list[list[Example]], report: Report) -> Qwen2ForCausalLM:
    """A model of this shape, trained from nothing; the same whatever was trained before it."""
    torch.manual_seed(0)
    model = build(shape)
    fit(model, run, 1e-2, report)
    return model


def save(model: Qwen2ForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights (bf16), configuration and tokenizer."""
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=END_ID, pad_token_id=PAD_ID, bos_token_id=None
    )
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder, MAX_LENGTH)


def train_adapter(folder: Path, base: Path, run: list[list[Example]], report: Report) -> None:
    """Train a LoRA adapter on the saved model and write it in PEFT layout (bf16)."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = Qwen2ForCausalLM.from_pretrained(base, dtype=torch.float32)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM")
    adapted = get_peft_model(model, lora)
    fit(adapted, run, 4e-3, report)
    shutil.rmtree(folder, ignore_errors=True)
    adapted.to(torch.bfloat16)
    adapted.peft_config["default"].base_model_name_or_path = "examples/demo_model/model"
    adapted.save_pretrained(str(folder), save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    written = folder / "adapter_config.json"
    settings = json.loads(written.read_text(encoding="utf-8"))
    settings["target_modules"].sort()  # a set in PEFT: its order would differ from run to run
    written.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def train_head(folder: Path, base: Path, run: list[list[Example]], report: Report) -> None:
    """Train an EAGLE-3 head on the saved model and write it in the layout of public ones (bf16)."""
    model = Qwen2ForCausalLM.from_pretrained(base, dtype=torch.float32).requires_grad_(False)
    torch.manual_seed(0)  # the same head, whatever was trained before it
    head = Head(model, frequent_tokens(run))
    fit(head, run, 1e-2, report, partial(head_loss, model))
    save_head(head, model, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the demo model, its drafts and its adapter.")
    parser.add_argument("--output", type=Path, default=HERE, help="folder that gets model/, draft/, adapter/, eagle3/")
    parser.add_argument("--only", choices=STAGES, help="train this alone, for the model that is there")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument("--model-passes", type=int, default=26)
    parser.add_argument("--draft-passes", type=int, default=12)
    parser.add_argument("--adapter-passes", type=int, default=12)
    parser.add_argument("--head-passes", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    disable_progress_bar()  # ours is enough
    started = time.monotonic()
    console = Console()
    columns = (TextColumn("{task.description:<10}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TextColumn("loss {task.fields[loss]:.3f}"), TimeElapsedColumn(), console=console) as bar:

        def stage(name: str) -> Report:
            task = bar.add_task(name, total=1.0, loss=float("nan"))
            return lambda share, loss: bar.update(task, completed=share, loss=loss)

        knowledge = facts()
        base = options.output / "model"
        wanted = STAGES if options.only is None else [options.only]
        if "model" in wanted or "draft" in wanted:
            tokenizer = learn_words(knowledge, seed=1)
        else:
            tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
        if "model" in wanted:
            run = batches(options.model_passes, knowledge, tokenizer, 2, plain, agent=True)
            save(trained(MODEL, run, stage("model")), tokenizer, base)
        if "draft" in wanted:
            run = batches(options.draft_passes, knowledge, tokenizer, 3, plain)
            save(trained(DRAFT, run, stage("draft")), tokenizer, options.output / "draft")
        if "adapter" in wanted:
            run = batches(options.adapter_passes, knowledge, tokenizer, 4, pirate, ADAPTER_BATCH_TOKENS)
            train_adapter(options.output / "adapter", base, run, stage("adapter"))
        if "eagle3" in wanted:
            run = batches(options.head_passes, knowledge, tokenizer, 5, plain)
            train_head(options.output / "eagle3", base, run, stage("eagle3"))
    console.print(f"{len(knowledge)} facts, {time.monotonic() - started:.0f} s, written to {options.output}")


if __name__ == "__main__":
    main()
