"""Measure the trained demo model: does it answer, does the adapter change it, does the draft agree with it?

`python -m examples.demo_model.measure` prints every listed question with its answer, then one `figure` line per
measure with its target, and exits with 1 when a target is missed. Greedy decoding by `transformers`, in fp32 on the
saved bf16 weights, so that any correct engine gives the same answers. What drafts bring is measured in the engine
(`drafting.py`).
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.figures import Figure, report
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from .agent import agent_figures, listed_calls, thought_and_answer

HERE = Path(__file__).resolve().parent
MAX_NEW_TOKENS = 96
MAX_BYTES = 9_000_000


@dataclass(frozen=True)
class Question:
    """A listed question and the phrases of which its answer must contain one (upper and lower case alike)."""

    question: str
    phrases: list[str]


def listed_questions() -> list[Question]:
    return [Question(**entry) for entry in json.loads((HERE / "questions.json").read_text(encoding="utf-8"))]


def load(folder: Path) -> Any:
    """The saved causal language model, in fp32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def load_adapted(base: Path, adapter: Path) -> Any:
    """The base model with the adapter on top, in fp32."""
    from peft import PeftModel

    return PeftModel.from_pretrained(load(base), adapter).eval()


def prompt_ids(tokenizer: Any, question: str, *, thinking: bool = False) -> list[int]:
    """Token ids of the question as one user turn, ready for the answer."""
    return conversation_ids(tokenizer, [{"role": "user", "content": question}], enable_thinking=thinking)


def conversation_ids(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> list[int]:
    """Token ids of the conversation, ready for what the model says next; `options` are the chat template's."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


@torch.no_grad()
def greedy_answer(model: Any, prompt: list[int]) -> list[int]:
    """Greedy continuation of `prompt`, up to and with the end token."""
    ids = torch.tensor([prompt])
    out = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=MAX_NEW_TOKENS
    )
    answer: list[int] = out[0, len(prompt) :].tolist()
    return answer


def contains_phrase(answer: str, question: Question) -> bool:
    return any(phrase.lower() in answer.lower() for phrase in question.phrases)


@torch.no_grad()
def agreeing_tokens(draft: Any, prompt: list[int], answer: list[int]) -> int:
    """How many tokens of `answer` the draft would have chosen, each after the tokens before it."""
    logits = draft(torch.tensor([prompt + answer])).logits[0]
    guesses = logits[len(prompt) - 1 : -1].argmax(-1)
    return int((guesses == torch.tensor(answer)).sum())


def answer_text(model: Any, tokenizer: Any, prompt: list[int]) -> str:
    """Greedy continuation of `prompt` as text."""
    text: str = tokenizer.decode(greedy_answer(model, prompt), skip_special_tokens=True)
    return text


def measure_agent(model: Any, tokenizer: Any, show: bool) -> list[Figure]:
    """Whether the listed calls are made, their results told, and the listed questions answered after a thought."""
    listed, questions = listed_calls(), listed_questions()
    calls, answers = (
        [
            answer_text(model, tokenizer, conversation_ids(tokenizer, item.messages()[:upto], tools=item.tools))
            for item in listed
        ]
        for upto in (1, 3)
    )
    outputs = [answer_text(model, tokenizer, prompt_ids(tokenizer, item.question, thinking=True)) for item in questions]
    thought = [
        bool(reasoning) and contains_phrase(answer, item)
        for (reasoning, answer), item in zip(map(thought_and_answer, outputs), questions, strict=True)
    ]
    if show:
        for item, call, answer in zip(listed, calls, answers, strict=True):
            right = item.is_made_by(call) and item.told in answer
            print(f"{'right' if right else 'WRONG'}  {item.question}\n    call     {call!r}\n    answer   {answer}")
        for item, output, ok in zip(questions, outputs, thought, strict=True):
            print(f"{'right' if ok else 'WRONG'}  {item.question}\n    thought  {output!r}")
    return [
        *agent_figures(calls, answers, listed),
        Figure("demo_thoughts_right", sum(thought), f"of_{len(questions)}", ">=", 16),
    ]


def folder_bytes(root: Path) -> int:
    """Size of everything the recipe wrote under `root`."""
    parts = (root / name for name in ("model", "draft", "adapter", "eagle3"))
    return sum(file.stat().st_size for part in parts for file in part.rglob("*") if file.is_file())


def measure(root: Path, show: bool = False) -> list[Figure]:
    """All figures of the model, draft and adapter under `root`."""
    tokenizer = AutoTokenizer.from_pretrained(root / "model")
    model, draft = load(root / "model"), load(root / "draft")
    questions = listed_questions()
    prompts = [prompt_ids(tokenizer, item.question) for item in questions]
    answers = [greedy_answer(model, prompt) for prompt in prompts]
    agreeing = sum(agreeing_tokens(draft, prompt, answer) for prompt, answer in zip(prompts, answers, strict=True))
    total = sum(len(answer) for answer in answers)
    sizes = [item.num_parameters() for item in (model, draft)]
    adapted = load_adapted(root / "model", root / "adapter")
    other_answers = [greedy_answer(adapted, prompt) for prompt in prompts]

    texts = [tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
    other_texts = [tokenizer.decode(answer, skip_special_tokens=True) for answer in other_answers]
    right = [contains_phrase(text, item) for text, item in zip(texts, questions, strict=True)]
    changed = sum(text != other for text, other in zip(texts, other_texts, strict=True))
    stopped = sum(answer[-1] == tokenizer.eos_token_id for answer in answers)
    if show:
        for item, text, other, ok in zip(questions, texts, other_texts, right, strict=True):
            print(f"{'right' if ok else 'WRONG'}  {item.question}\n    model    {text}\n    adapter  {other}")
    return [
        Figure("demo_answers_right", sum(right), f"of_{len(questions)}", ">=", 16),
        Figure("demo_answers_ended", stopped, f"of_{len(questions)}", ">=", 16),
        Figure("demo_adapter_changes", changed, f"of_{len(questions)}", ">=", 16),
        *measure_agent(model, tokenizer, show),
        Figure("demo_draft_agreement", round(100 * agreeing / total, 1), "%", ">=", 50),
        Figure("demo_model_parameters", sizes[0], "parameters", "<=", 3_200_000),
        Figure("demo_draft_parameters", sizes[1], "parameters", "<=", 400_000),
        Figure("demo_size", folder_bytes(root), "bytes", "<=", MAX_BYTES),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the trained demo model.")
    parser.add_argument("--root", type=Path, default=HERE, help="folder that holds model/, draft/ and adapter/")
    disable_progress_bar()
    torch.set_num_threads(1)  # a model this small gains nothing from more
    return report("demo_model", measure(parser.parse_args().root, show=True))


if __name__ == "__main__":
    sys.exit(main())
