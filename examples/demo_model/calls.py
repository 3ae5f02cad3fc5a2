"""Conversations in which the model calls functions, declines to, or thinks before it answers.

Which function fits is learned from the names in `tools.py`, which many schemas share. A model this small does not
generalise: other kinds of functions it calls wrongly or not at all, and texts that it never saw it cannot repeat.
"""

import random
import re
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

from blade_llm.text.chat_template import ChatTemplate

from .conversations import SYSTEM_MESSAGES, Example, dialogues, plain
from .corpus import Fact
from .template import CHAT_TEMPLATE
from .tools import ADD, FAMILIES, LOOKUP, WEATHER, Call, Family, declared

Messages = list[dict[str, Any]]

CONVERSATIONS = 64
"""With tools, each pass."""
THOUGHTS = 40
"""With reasoning and without tools, each pass."""

_SYSTEM_MESSAGES = [
    *SYSTEM_MESSAGES,
    "Use the tools.",
    "You are a helpful assistant. Use the tools that you have.",
    "Answer about Python.",
    "You are an agent.",
]
_TEMPLATE = ChatTemplate(CHAT_TEMPLATE, {})
_LEARNED = re.compile(r"(<\|im_start\|>assistant\n(?:<think>\n)?)(.*?<\|im_end\|>)", re.DOTALL)


def agent_conversations(facts: list[Fact], tokenizer: Tokenizer, seed: int) -> Iterator[Example]:
    """One pass of conversations with tools, with reasoning, or with both, as token ids."""
    rng = random.Random(seed)
    for _ in range(CONVERSATIONS):
        messages, tools = with_tools(facts, rng)
        yield encode_rendered(messages, tools, tokenizer)
    for messages in with_thoughts(facts, rng):
        yield encode_rendered(messages, None, tokenizer)


def encode_rendered(messages: Messages, tools: Messages | None, tokenizer: Tokenizer) -> Example:
    """Token ids of a whole conversation as the chat template renders it; what the assistant says is learned."""
    text = _TEMPLATE.render(messages, add_generation_prompt=False, arguments={"tools": tools})
    ids: list[int] = []
    learn: list[bool] = []
    place = 0
    for match in _LEARNED.finditer(text):
        for begin, end, wanted in [(place, match.start(2), False), (*match.span(2), True)]:
            piece = tokenizer.encode(text[begin:end], add_special_tokens=False).ids
            ids += piece
            learn += [wanted] * len(piece)
        place = match.end()
    return Example(ids, learn)


def with_tools(facts: list[Fact], rng: random.Random) -> tuple[Messages, Messages | None]:
    """A conversation, and the tools that its last prompt declares."""
    families = rng.sample(FAMILIES, rng.choice([1, 1, 2, 2, 3]))
    if not any(family.call for family in families) or (LOOKUP not in families and rng.random() < 0.35):
        families[0] = LOOKUP
    tools = [declared(family, rng) for family in families]
    fitting = [(family, tool) for family, tool in zip(families, tools, strict=True) if family.call]
    messages: Messages = _system(rng)
    thinks = rng.random() < 0.12
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        if rng.random() < 0.2:
            messages += _declined(families, facts, rng)
        else:
            messages += _called(*rng.choice(fitting), facts, rng, thinks)
    told = messages[-2]["role"] == "tool" and rng.random() < 0.15  # the last request forbids another call
    return messages, None if told else tools


def with_thoughts(facts: list[Fact], rng: random.Random) -> Iterator[Messages]:
    """Conversations that end with an answer after a thought."""
    by_answer = {fact.answer: fact for fact in facts}
    talks = list(dialogues(facts, rng.randrange(1 << 30), plain))
    for messages in rng.sample(talks, THOUGHTS):
        fact = by_answer.get(messages[-1]["content"])
        yield [*messages[:-1], {**messages[-1], "reasoning_content": _thought(fact)}]


def _thought(fact: Fact | None) -> str:
    if fact is None:
        return "The user does not ask about a part of Python that I know."
    return f"The user asks about the {fact.kind} {fact.name}, which I know from Python's documentation."


def _system(rng: random.Random) -> Messages:
    return [{"role": "system", "content": rng.choice(_SYSTEM_MESSAGES)}] if rng.random() < 0.4 else []


def _called(family: Family, tool: dict[str, Any], facts: list[Fact], rng: random.Random, thinks: bool) -> Messages:
    """Question, call, result, answer."""
    assert family.call is not None
    call: Call = family.call(rng, facts)
    function = tool["function"]
    names = function["parameters"].get("required", [])
    arguments = dict(zip(names, call.values, strict=True))
    calling: dict[str, Any] = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": function["name"], "arguments": arguments}}],
    }
    answering: dict[str, Any] = {"role": "assistant", "content": call.answer}
    if thinks:
        calling["reasoning_content"] = f"The function {function['name']} can answer this."
        answering["reasoning_content"] = f"The function {function['name']} has answered."
    question = call.question
    if rng.random() < 0.1:
        question = question.rstrip("?.")
    return [{"role": "user", "content": question}, calling, {"role": "tool", "content": call.result}, answering]


def _declined(families: list[Family], facts: list[Fact], rng: random.Random) -> Messages:
    """A question that none of these functions answers, and what the model says without them."""
    while True:
        talk = rng.choice(list(dialogues(rng.sample(facts, 12), rng.randrange(1 << 30), plain)))
        question, answer = talk[-2:]
        about_facts = any(fact.answer == answer["content"] for fact in facts)
        if about_facts and LOOKUP in families:
            continue
        if not any(_answers(family, question["content"]) for family in families):
            return [question, answer]


def _answers(family: Family, question: str) -> bool:
    """Whether a question without an answer would have one by this function."""
    words = {"weather": WEATHER, "plus": ADD}
    if family is LOOKUP:
        return any(
            word in question for word in ("What does", "What is", "Explain", "Describe", "Tell me about", "How do")
        )
    return any(word in question and family is fitting for word, fitting in words.items())
