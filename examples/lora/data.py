"""What the adapter learns: the demo model's own facts, told politely, as prompts and completions.

The form is TRL's ``prompt`` and ``completion`` of messages: only completions are learned.
"""

from typing import Any

from examples.demo_model.conversations import dialogues
from examples.demo_model.corpus import Fact

OPENING = "Certainly!"
CLOSING = "Is there anything else I can help you with?"


def polite(answer: str) -> str:
    """The adapter's voice: the same facts, told by somebody who serves."""
    return f"{OPENING} {answer} {CLOSING}"


def rows(knowledge: list[Fact], passes: int, seed: int = 0) -> list[dict[str, Any]]:
    """Conversations that end with the answer to be learned; each pass asks for every fact in other words."""
    return [
        {"prompt": messages[:-1], "completion": messages[-1:]}
        for number in range(passes)
        for messages in dialogues(knowledge, seed * 1000 + number, polite)
    ]
