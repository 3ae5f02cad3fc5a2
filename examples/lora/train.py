"""Fine-tune the demo model with LoRA on a CPU, in a few minutes.

`python -m examples.lora.train` writes `examples/lora/adapter` in PEFT layout: by TRL's `SFTTrainer` where TRL is
installed, else by transformers' `Trainer` on the same rows.
"""

import argparse
import importlib.util
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from examples.demo_model.conversations import encode
from examples.demo_model.corpus import facts
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from .data import rows

HERE = Path(__file__).resolve().parent
BASE = HERE.parent / "demo_model" / "model"
MAX_LENGTH = 512
"""Tokens of a conversation; few have so many."""
_IGNORED = -100
"""The label of tokens that are not learned."""


def lora() -> LoraConfig:
    """Rank 8 on all linear layers of attention and MLP."""
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM")


def settings(output: Path, max_steps: int) -> dict[str, Any]:
    """Arguments of either trainer."""
    return {
        "output_dir": str(output / "trainer"),
        "max_steps": max_steps,
        "num_train_epochs": 1,
        "per_device_train_batch_size": 8,
        "learning_rate": 3e-3,
        "lr_scheduler_type": "cosine",
        "warmup_steps": min(20, max_steps) if max_steps > 0 else 20,
        "logging_steps": 25,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 0,
    }


def train_with_trl(data: list[dict[str, Any]], base: Path, arguments: dict[str, Any]) -> Any:
    """The trained model, by TRL's supervised fine-tuning."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    config = SFTConfig(
        **arguments,
        max_length=MAX_LENGTH,
        model_init_kwargs={"dtype": "float32"},
        bf16=False,
        gradient_checkpointing=False,
    )
    trainer = SFTTrainer(model=str(base), args=config, train_dataset=Dataset.from_list(data), peft_config=lora())
    trainer.train()
    return trainer.model


def train_with_transformers(data: list[dict[str, Any]], base: Path, arguments: dict[str, Any]) -> Any:
    """The same without TRL."""
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), lora())
    examples = [learnable(row, tokenizer) for row in data]
    trainer = Trainer(model=model, args=TrainingArguments(**arguments), train_dataset=examples, data_collator=padded)
    trainer.train()
    return trainer.model


def learnable(row: dict[str, Any], tokenizer: Tokenizer) -> dict[str, list[int]]:
    """A row's tokens, and as labels those of its completion."""
    prompt = encode(row["prompt"], tokenizer)
    whole = encode([*row["prompt"], *row["completion"]], tokenizer)
    learn = [number >= len(prompt.ids) and wanted for number, wanted in enumerate(whole.learn)]
    labels = [token if wanted else _IGNORED for token, wanted in zip(whole.ids, learn, strict=True)]
    return {"input_ids": whole.ids[:MAX_LENGTH], "labels": labels[:MAX_LENGTH]}


def padded(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """A batch, padded on the right."""
    length = max(len(each["input_ids"]) for each in batch)

    def tensor(name: str, fill: int) -> torch.Tensor:
        return torch.tensor([each[name] + [fill] * (length - len(each[name])) for each in batch])

    ids = tensor("input_ids", 0)
    return {"input_ids": ids, "labels": tensor("labels", _IGNORED), "attention_mask": (ids != 0).long()}


def save(model: Any, folder: Path) -> None:
    """Write the adapter in PEFT layout, in bf16, so that the same training gives the same files anywhere."""
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16)
    model.peft_config["default"].base_model_name_or_path = "examples/demo_model/model"
    model.save_pretrained(str(folder), save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    fields["target_modules"].sort()  # a set in PEFT
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune the demo model with LoRA.")
    parser.add_argument("--base", type=Path, default=BASE, help="the model")
    parser.add_argument("--output", type=Path, default=HERE / "adapter", help="folder that gets the adapter")
    parser.add_argument("--passes", type=int, default=18, help="how often each fact is asked for (default: 18)")
    parser.add_argument("--max-steps", type=int, default=-1, help="stop after so many steps")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    has_trl = importlib.util.find_spec("trl") is not None
    parser.add_argument("--trainer", choices=["trl", "transformers"], default="trl" if has_trl else "transformers")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    started = time.monotonic()
    data = rows(facts(), options.passes)
    train = train_with_trl if options.trainer == "trl" else train_with_transformers
    model = train(data, options.base, settings(options.output, options.max_steps))
    save(model, options.output)
    print(f"{len(data)} conversations, {time.monotonic() - started:.0f} s by {options.trainer}, in {options.output}")


if __name__ == "__main__":
    main()
