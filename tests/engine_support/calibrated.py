"""Small models with a tokenizer and texts, to be quantised by calibrated algorithms."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from engine_support.families import ROWS, save_row
from engine_support.tiny_text import write_tokenizer

DEMO = Path(__file__).resolve().parents[2] / "examples/demo_model"
QUESTIONS: list[tuple[str, list[str]]] = [
    (entry["question"], entry["phrases"]) for entry in json.loads((DEMO / "questions.json").read_text(encoding="utf-8"))
]
"""Questions to the demo model, and phrases of which an answer has one."""
VOCABULARY = 384
"""More than the tokenizer has."""
WORDS = [
    "a",
    "small",
    "engine",
    "reads",
    "blocks",
    "of",
    "tokens",
    "and",
    "keeps",
    "the",
    "keys",
    "it",
    "made",
    "for",
    "every",
    "layer",
    "of",
    "a",
    "model",
]


def write_texts(file: Path, count: int = 20, words: int = 12) -> Path:
    """A file of JSON lines."""
    rng = random.Random(5)
    lines = [json.dumps({"text": " ".join(rng.choices(WORDS, k=words))}) for _ in range(count)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def save_with_tokenizer(folder: Path, row: str, dtype: torch.dtype = torch.bfloat16, **sizes: Any) -> Path:
    """A random model of a row of the table of families, and a byte-level tokenizer."""
    from dataclasses import replace

    changed = replace(ROWS[row], shape={**ROWS[row].shape, "vocab_size": VOCABULARY, **sizes})
    save_row(folder, changed, dtype)
    write_tokenizer(folder)
    return folder


def prompt_for(question: str) -> str:
    """As the demo model's chat template has it."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def write_conversations(file: Path, questions: list[tuple[str, list[str]]]) -> Path:
    """A file of JSON lines: each question to the demo model with the first of its phrases for an answer."""
    texts = [f"{prompt_for(question)}{phrases[0]}<|im_end|>\n" for question, phrases in questions]
    file.write_text("\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")
    return file
