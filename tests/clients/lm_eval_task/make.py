"""Writes items.jsonl: fifty questions that the demo model was taught, each with four answers of which one is right.

Wrong answers are those to other questions of the same kind, under the right name: `len` with what `abs` does. Run from
the repository root: ``python -m tests.clients.lm_eval_task.make``.
"""

import json
import re
from pathlib import Path

from examples.demo_model.corpus import Fact, facts

ITEMS = 50
CHOICES = 4
LONGEST = 110
"""Of an answer in characters: the model knows short ones by heart."""
QUESTIONS = {
    "function": "What does {} do?",
    "method": "What does the method {} do?",
    "exception": "When is {} raised?",
    "module": "What is the {} module for?",
    "statement": "What does the {} statement do?",
}


def items() -> list[dict[str, object]]:
    """Evenly drawn from all facts whose answers say their name and are short."""
    usable = [fact for fact in facts() if fact.name in fact.answer and len(fact.answer) <= LONGEST]
    drawn = [usable[index * len(usable) // ITEMS] for index in range(ITEMS)]
    return [_item(number, fact, usable) for number, fact in enumerate(drawn)]


def _item(number: int, fact: Fact, usable: list[Fact]) -> dict[str, object]:
    kind = [other for other in usable if other.kind == fact.kind]
    start = kind.index(fact)
    wrong: list[str] = []
    for step in range(1, len(kind)):
        other = kind[(start + 7 * step) % len(kind)]
        answer = re.sub(rf"\b{re.escape(other.name)}\b", fact.name, other.answer)
        if answer not in (fact.answer, *wrong):
            wrong.append(answer)
        if len(wrong) == CHOICES - 1:
            break
    right = number % CHOICES
    choices = [*wrong[:right], fact.answer, *wrong[right:]]
    return {"question": QUESTIONS[fact.kind].format(fact.name), "choices": choices, "answer": right}


if __name__ == "__main__":
    lines = [json.dumps(item, ensure_ascii=False) for item in items()]
    (Path(__file__).parent / "items.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
