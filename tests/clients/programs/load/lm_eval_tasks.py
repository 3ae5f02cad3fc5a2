"""lm-evaluation-harness: its `local-completions` and `local-chat-completions` models, with tasks of our own.

The tasks (tests/clients/lm_eval_task) are fifty questions about Python, which the demo model was taught: a server that
scores prompts wrongly, or generates anything but the most likely tokens, misses them.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

# Nothing is looked up on the hub: the tokenizer and the items are local files. Both are documented settings.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": tempfile.mkdtemp(), "TOKENIZERS_PARALLELISM": "false"}

import torch
import transformers
from case import BASE_URL, MODEL, Client
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

CLIENT = Client("lm-evaluation-harness", "lm_eval")
TASKS = Path(__file__).parents[2] / "lm_eval_task"
FOLDER = str(Path(__file__).parents[4] / "examples" / "demo_model" / "model")
LEAST_ACCURACY = 0.9
"""Guessing gives 0.25."""
LEAST_EXACT = 0.8
STEP = 10
"""Every so many questions, the scores of their answers are computed again by transformers."""


def evaluate(model: str, task: str, path: str, **arguments: Any) -> dict[str, Any]:
    """Run a task on the server; what the harness found."""
    os.chdir(TASKS)  # the tasks name their items by a relative path
    found = simple_evaluate(
        model=model,
        model_args={"model": MODEL, "base_url": f"{BASE_URL}/{path}", "num_concurrent": 4} | arguments,
        tasks=[task],
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        apply_chat_template=True,
        bootstrap_iters=0,
    )
    assert found is not None
    assert len(found["samples"][task]) == 50
    return found


LOCAL_TOKENIZER = {"tokenizer_backend": "huggingface", "tokenizer": FOLDER}


@CLIENT.case("loglikelihood")
def loglikelihood() -> str:
    found = evaluate("local-completions", "python_choice", "completions", batch_size=4, **LOCAL_TOKENIZER)
    accuracy = found["results"]["python_choice"]["acc,none"]
    assert accuracy >= LEAST_ACCURACY, found["results"]
    worst = 0.0
    samples = sorted(found["samples"]["python_choice"], key=lambda sample: sample["doc_id"])
    for sample in samples[::STEP]:
        for request, answer in zip(sample["arguments"], sample["filtered_resps"], strict=True):
            expected, tokens, greedy = score(*request)
            worst = max(worst, abs(answer[0] - expected) / tokens)
            assert answer[1] == greedy, (request, answer, expected)
    assert worst < 0.05, f"{worst} nats a token from what transformers computes"
    return f"acc {accuracy:.2f}; at most {worst:.1e} nats a token from transformers'"


@CLIENT.case("generate_until")
def generate_until() -> str:
    found = evaluate("local-completions", "python_answer", "completions", batch_size=4, **LOCAL_TOKENIZER)
    return _exact(found)


@CLIENT.case("chat")
def chat() -> str:
    return _exact(evaluate("local-chat-completions", "python_answer", "chat/completions"))


def _exact(found: dict[str, Any]) -> str:
    exact = found["results"]["python_answer"]["exact_match,none"]
    assert exact >= LEAST_EXACT, found["results"]
    return f"exact_match {exact:.2f}"


def score(context: str, continuation: str) -> tuple[float, int, bool]:
    """Log-probability of ``continuation`` after ``context``, its number of tokens, and whether each is the most likely:
    computed from the same weights by transformers, in fp32. The harness counts white space before it as its own."""
    global _MODEL
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    _MODEL = _MODEL or transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    before = len(tokenizer(context.rstrip()).input_ids)
    ids = torch.tensor([tokenizer(context + continuation).input_ids])
    with torch.inference_mode():
        logprobs = _MODEL(ids).logits[0, before - 1 : -1].log_softmax(-1)
    targets = ids[0, before:]
    chosen = logprobs.gather(1, targets[:, None])
    return float(chosen.sum()), len(targets), bool((logprobs.argmax(-1) == targets).all())


_MODEL: Any = None

if __name__ == "__main__":
    CLIENT.main()
