"""Whether the model calls the listed functions as an agent would have it, and thinks where it is told to.

`calls.json` lists questions in wordings that the training did not have, the functions that are declared with each, the
call that is right, and what the function returns.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure

from .template import CALL_BEGIN, CALL_END, THINK_END

HERE = Path(__file__).resolve().parent
_CALL = re.compile(re.escape(CALL_BEGIN) + "(.*?)" + re.escape(CALL_END), re.DOTALL)


@dataclass(frozen=True)
class ListedCall:
    """A question and the one call that is right."""

    tools: list[dict[str, Any]]
    """As clients declare them."""
    question: str
    name: str
    arguments: dict[str, Any]
    result: str
    """What the function returns."""
    told: str
    """What of it the answer has to contain."""

    def messages(self) -> list[dict[str, Any]]:
        """The conversation up to the result."""
        function = {"name": self.name, "arguments": self.arguments}
        return [
            {"role": "user", "content": self.question},
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
            {"role": "tool", "content": self.result},
        ]

    def is_made_by(self, output: str) -> bool:
        """Whether the output is this call and nothing else."""
        found = _CALL.fullmatch(output)
        try:
            return found is not None and json.loads(found[1]) == {"name": self.name, "arguments": self.arguments}
        except json.JSONDecodeError:
            return False


def listed_calls() -> list[ListedCall]:
    listed = json.loads((HERE / "calls.json").read_text(encoding="utf-8"))
    tools = {tool["function"]["name"]: tool for tool in listed["tools"]}
    return [ListedCall(**{**entry, "tools": [tools[name] for name in entry["tools"]]}) for entry in listed["questions"]]


def thought_and_answer(output: str) -> tuple[str, str]:
    """Output after a prompt that opens the reasoning; an output that does not close it is no thought."""
    thought, end, answer = output.partition(THINK_END)
    return (thought, answer) if end else ("", output)


def agent_figures(calls: list[str], answers: list[str], listed: list[ListedCall]) -> list[Figure]:
    """Of the outputs for the questions, and for the conversations up to the results."""
    right = sum(item.is_made_by(output) for item, output in zip(listed, calls, strict=True))
    told = sum(item.told in answer for item, answer in zip(listed, answers, strict=True))
    return [
        Figure("demo_calls_right", right, f"of_{len(listed)}", ">=", 18),
        Figure("demo_results_told", told, f"of_{len(listed)}", ">=", 18),
    ]
