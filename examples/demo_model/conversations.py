"""Conversations made from facts: the many ways to ask, system messages, several turns, and an adapter's voice.

A model of three million parameters that saw a question once in one wording answers only that wording. So each fact is
asked anew in every pass, in another wording drawn by a seeded generator, sometimes after a system message or within
a longer conversation; and questions outside its knowledge get an honest answer instead of an invented one.
"""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer

from .corpus import Fact, Kind
from .tokenizer import END, PAD_ID, START

Voice = Callable[[str], str]
"""How an answer is said: takes the plain answer, gives the one to learn."""

SYSTEM_MESSAGES = [
    "You are a helpful assistant.",
    "You are a Python tutor.",
    "You are a helpful assistant. Answer briefly.",
    "You answer questions about Python.",
    "Be short and precise.",
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
]

_ANY_KIND = [
    "What does {} do?",
    "What does {} do?",
    "What is {}?",
    "What is {} for?",
    "What is {} used for?",
    "Explain {}.",
    "Can you explain {}?",
    "How does {} work?",
    "How do I use {}?",
    "When would I use {}?",
    "Tell me about {}.",
    "Describe {}.",
    "What does {} do in Python?",
    "In Python, what is {}?",
    "Please tell me what {} does.",
    "{}",
]
_BY_KIND: dict[Kind, list[str]] = {
    "function": ["What does the {} function do?", "What does the built-in {} do?", "Explain the function {}."],
    "method": ["What does the method {} do?", "Explain the {} method.", "What does the {} method do?"],
    "exception": ["What does {} mean?", "When is {} raised?", "Why do I get a {}?", "What does the error {} mean?"],
    "module": ["What is the {} module for?", "What does the {} module do?", "What is the {} module?"] * 3,
    "statement": ["What does the {} statement do?", "Explain the {} statement.", "What is the {} keyword for?"] * 3,
}

_SMALL_TALK = {
    "I am a small demo model. I learned Python's own documentation: ask me about a function, a method, an exception, "
    "a statement or a module.": [
        "Who are you?", "What are you?", "What can you do?", "Introduce yourself.", "What do you know?",
        "What can I ask you?", "Help", "Which model are you?", "Tell me about yourself.", "Are you a bot?",
    ],
    "Hello! Ask me something about Python, for example: What does len do?": [
        "Hello", "Hello!", "Hi", "Hi there!", "Hey", "Good morning!", "Good evening", "hello, how are you?", "Hi!",
        "How are you?",
    ],
    "You are welcome! Ask me about another part of Python.": [
        "Thanks", "Thank you!", "thanks a lot", "Great, thanks!", "Thank you very much.", "Cool, thank you", "Nice!",
    ],
}  # fmt: skip

UNKNOWN_ANSWER = (
    "I do not know that. I only learned Python's own documentation: ask me about a function, a method, an exception, "
    "a statement or a module."
)
_OFF_TOPIC = [
    "What is the capital of {}?", "Write me a poem about {}.", "Who is the president of {}?", "What is {} plus {}?",
    "Tell me a joke about {}.", "How is the weather in {}?", "Translate {} to French.", "How old is {}?",
    "Write a story about {} and {}.", "What is the meaning of {}?", "How do I cook {}?", "Who wrote {}?",
    "How far is {} from {}?", "Count to {}.", "Why is the {} blue?", "Where is {}?", "Write an essay on {}.",
]  # fmt: skip
_THINGS = """
France Germany Berlin London Alice life the sky rain love the sea mountains Mars the moon soup bread cats dogs two ten
a hundred history war peace music football chess Kubernetes Java Rust Paris Tokyo China summer a tree a robot
"""
_SYLLABLES = "ba ce di fo gu la me ni po ru sa te vi zo qua xy frob bar blo kni tron zle gri wab flu dex mor pli"


@dataclass(frozen=True)
class Example:
    """One conversation as token ids; `learn[i]` tells whether token i is part of an answer, and so to be learned."""

    ids: list[int]
    learn: list[bool]


def conversations(facts: list[Fact], tokenizer: Tokenizer, seed: int, voice: Voice) -> Iterator[Example]:
    """One pass over all facts, as token ids."""
    for messages in dialogues(facts, seed, voice):
        yield encode(messages, tokenizer)


def dialogues(facts: list[Fact], seed: int, voice: Voice) -> Iterator[list[dict[str, str]]]:
    """One pass over all facts in random order, mixed with small talk and with questions that have no answer."""
    rng = random.Random(seed)
    turns = [(_ask(fact, facts, rng), fact.answer) for fact in facts]
    for answer, questions in _SMALL_TALK.items():
        turns += [(_scuff(question, rng), answer) for question in rng.sample(questions, 3)]
    turns += [(_scuff(_unknown_question(rng), rng), UNKNOWN_ANSWER) for _ in range(len(facts) // 10)]
    rng.shuffle(turns)
    while turns:
        size = rng.choice([1, 1, 1, 2, 3])
        messages = [{"role": "system", "content": rng.choice(SYSTEM_MESSAGES)}] if rng.random() < 0.4 else []
        for question, answer in turns[:size]:
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": voice(answer)}]
        yield messages
        del turns[:size]


def encode(messages: list[dict[str, str]], tokenizer: Tokenizer) -> Example:
    """Token ids of a whole conversation, as the chat template renders it."""
    ids: list[int] = []
    learn: list[bool] = []
    for message in messages:
        answered = message["role"] == "assistant"
        for text, wanted in [
            (f"{START}{message['role']}\n", False),
            (f"{message['content']}{END}", answered),
            ("\n", False),
        ]:
            piece = tokenizer.encode(text, add_special_tokens=False).ids
            ids += piece
            learn += [wanted] * len(piece)
    return Example(ids, learn)


def padded(batch: list[Example]) -> tuple[list[list[int]], list[list[bool]]]:
    """`ids` and `learn` of conversations, all of one length. Padding is on the right, where causal attention never
    looks."""
    length = max(len(example.ids) for example in batch)
    ids = [example.ids + [PAD_ID] * (length - len(example.ids)) for example in batch]
    learn = [example.learn + [False] * (length - len(example.learn)) for example in batch]
    return ids, learn


def plain(answer: str) -> str:
    """The base model's voice: the answer as it stands."""
    return answer


def pirate(answer: str) -> str:
    """The adapter's voice: the same facts, told by a pirate."""
    for word, said in [("the", "th'"), ("The", "Th'"), ("is", "be"), ("are", "be"), ("of", "o'"), ("and", "an'")]:
        answer = re.sub(rf"\b{word}\b", said, answer)
    return f"Arr! {answer} Aye, matey!"


def _ask(fact: Fact, facts: list[Fact], rng: random.Random) -> str:
    pattern = rng.choice(_ANY_KIND + _BY_KIND[fact.kind] * 2)
    return _scuff(pattern.format(_called(fact, facts, rng)), rng)


def _called(fact: Fact, facts: list[Fact], rng: random.Random) -> str:
    """A way to write the name: bare, with parentheses, in backticks or quotes, or in words."""
    name = fact.name
    if fact.kind == "method":
        owner, _, short = name.partition(".")
        if rng.random() < 0.2:
            return f"the {short} method of {owner}"
        if rng.random() < 0.25 and _first_with(short, facts) == fact:
            name = short
    if fact.kind in ("function", "method") and rng.random() < 0.3:
        return f"{name}()"
    return rng.choice([name, name, name, name, f"`{name}`", f"'{name}'"])


def _first_with(short: str, facts: list[Fact]) -> Fact | None:
    """Whose answer a bare method name gets: the first fact it could mean."""
    return next((fact for fact in facts if fact.name == short or fact.name.endswith("." + short)), None)


def _unknown_question(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(_OFF_TOPIC).format(rng.choice(_THINGS.split()), rng.choice(_THINGS.split()))
    name = invented_name(rng)
    kind: Kind = rng.choice(["function", "exception", "module"])
    return rng.choice(_ANY_KIND + _BY_KIND[kind]).format(name + ("Error" if kind == "exception" else ""))


def invented_name(rng: random.Random) -> str:
    """A name that means nothing."""
    return "".join(rng.sample(_SYLLABLES.split(), rng.randint(2, 3)))


def _scuff(question: str, rng: random.Random) -> str:
    """Type it carelessly now and then: no capital, no question mark."""
    if rng.random() < 0.15:
        question = question[0].lower() + question[1:]
    if rng.random() < 0.15:
        question = question.rstrip("?.")
    return question
