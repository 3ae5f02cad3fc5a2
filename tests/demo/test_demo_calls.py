"""What the demo model learns of tools and reasoning: the conversations, and the listed calls."""

from __future__ import annotations

import json
import random
import re

import pytest
from examples.demo_model import agent, calls, corpus, measure, tools
from tokenizers import Tokenizer
from transformers import AutoTokenizer


@pytest.fixture(scope="module")
def facts() -> list[corpus.Fact]:
    return corpus.facts()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(measure.HERE / "model" / "tokenizer.json"))


def test_a_pass_is_the_same_for_the_same_seed(facts: list[corpus.Fact], tokenizer: Tokenizer) -> None:
    state = random.getstate()
    first = [example.ids for example in calls.agent_conversations(facts, tokenizer, 1)]
    assert random.getstate() == state
    assert first == [example.ids for example in calls.agent_conversations(facts, tokenizer, 1)]
    assert first != [example.ids for example in calls.agent_conversations(facts, tokenizer, 2)]
    assert len(first) == calls.CONVERSATIONS + calls.THOUGHTS


def test_every_call_is_of_a_declared_function_and_its_result_is_told(facts: list[corpus.Fact]) -> None:
    rng = random.Random(0)
    called, declined, told = 0, 0, 0
    for _ in range(200):
        messages, declared = calls.with_tools(facts, rng)
        told += declared is None
        for before, message, *after in zip(messages, messages[1:], messages[2:], messages[3:], strict=False):
            if message["role"] == "assistant" and "tool_calls" not in message:
                declined += before["role"] == "user"
            for call in message.get("tool_calls", []):
                called += 1
                assert before["role"] == "user"
                result, answer = after
                assert result["role"] == "tool"
                assert "tool_calls" not in answer
                assert all(str(value) in before["content"] for value in call["function"]["arguments"].values())
                if declared is not None:
                    (function,) = (
                        tool["function"] for tool in declared if tool["function"]["name"] == call["function"]["name"]
                    )
                    parameters = function["parameters"]
                    assert list(call["function"]["arguments"]) == parameters.get("required", [])
                    assert parameters["properties"].keys() >= call["function"]["arguments"].keys()
    assert called > 200
    assert declined > 20
    assert told > 10


def test_only_what_the_assistant_says_is_learned(facts: list[corpus.Fact], tokenizer: Tokenizer) -> None:
    call = {"function": {"name": "lookup", "arguments": {"name": "len"}}}
    messages = [
        {"role": "user", "content": "What does len do?"},
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "Hm."},
        {"role": "tool", "content": "It counts."},
        {"role": "assistant", "content": "It counts."},
    ]
    example = calls.encode_rendered(messages, [{"type": "function", "function": {"name": "lookup"}}], tokenizer)
    learned = tokenizer.decode(
        [token for token, learn in zip(example.ids, example.learn, strict=True) if learn], skip_special_tokens=False
    )
    call_text = '<tool_call>\n{"name": "lookup", "arguments": {"name": "len"}}\n</tool_call>'
    assert learned == f"Hm.\n</think>\n\n{call_text}<|im_end|>It counts.<|im_end|>"
    options = {"tools": [{"type": "function", "function": {"name": "lookup"}}], "enable_thinking": True}
    wrapped = AutoTokenizer.from_pretrained(measure.HERE / "model")
    prompt = measure.conversation_ids(wrapped, messages[:1], **options)
    assert example.ids[: len(prompt)] == prompt  # what a server makes of it
    assert not any(example.learn[: len(prompt)])


def test_thoughts_end_in_the_plain_answers(facts: list[corpus.Fact]) -> None:
    thoughts = list(calls.with_thoughts(facts, random.Random(0)))
    assert len(thoughts) == calls.THOUGHTS
    answers = {fact.answer for fact in facts}
    assert sum(messages[-1]["content"] in answers for messages in thoughts) > calls.THOUGHTS / 2
    for messages in thoughts:
        assert messages[-1]["reasoning_content"].count(".") in (1, 2)
        assert not any("reasoning_content" in message for message in messages[:-1])


def test_the_listed_wordings_are_not_those_of_the_training() -> None:
    thing = r"(?-i:[\w.]+(?: [A-Z]\w+)?)(?:\(\))?"
    asked = [
        re.compile(re.escape(pattern.rstrip("?.")).replace(r"\{\}", thing) + "[?.]?", re.IGNORECASE)
        for pattern in tools.questions()
    ]
    assert any(pattern.fullmatch("what is the weather in New York") for pattern in asked)
    listed = agent.listed_calls()
    assert len(listed) == 20
    assert len({item.name for item in listed}) == 6
    found = [item.question for item in listed if any(pattern.fullmatch(item.question) for pattern in asked)]
    assert not found


def test_schemas_are_written_in_many_ways() -> None:
    rng = random.Random(0)
    made = [json.dumps(tools.declared(tools.LOOKUP, rng)["function"]["parameters"]) for _ in range(200)]
    assert len(set(made)) > 100
    for keyword in ("additionalProperties", "title", "description", "maxLength"):
        assert any(keyword in schema for schema in made)
    assert any(schema.startswith('{"properties"') for schema in made)


@pytest.mark.parametrize(
    ("output", "right"),
    [
        ('<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>', True),
        ('<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 1}}\n</tool_call>', False),
        ('<tool_call>\n{"name": "mul", "arguments": {"a": 1, "b": 2}}\n</tool_call>', False),
        ('Yes.<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>', False),
        ('<tool_call>\n{"name": "add", \n</tool_call>', False),
        ("3", False),
    ],
)
def test_only_the_whole_right_call_counts(output: str, right: bool) -> None:
    listed = agent.ListedCall([], "What is 1 plus 2?", "add", {"a": 1, "b": 2}, "3", "3")
    assert listed.is_made_by(output) is right
    figures = {figure.name: figure.value for figure in agent.agent_figures([output], ["It is 3."], [listed])}
    assert figures == {"demo_calls_right": int(right), "demo_results_told": 1}


def test_a_thought_has_an_end() -> None:
    assert agent.thought_and_answer("Hm.\n</think>\n\nYes.") == ("Hm.", "Yes.")
    assert agent.thought_and_answer("Hm.") == ("", "Hm.")
