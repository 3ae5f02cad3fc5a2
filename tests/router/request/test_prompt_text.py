"""The text of prompts: what makes two of them begin alike."""

import json
import subprocess
import sys
from typing import Any

import pytest

from blade_router.request.parse import READ_AT_ONCE, parse_fields
from blade_router.request.prompt_text import BLOCK, IMAGE_BLOCKS, Prompt

LONG = "All work and no play makes Jack a dull boy. " * 40


def prompt(body: dict[str, Any], **dumps: Any) -> Prompt:
    return Prompt(parse_fields(json.dumps(body, **dumps).encode()))


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **fields}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def shared(one: Prompt, other: Prompt) -> int:
    """Blocks they have in common."""
    pairs = zip(one.chain, other.chain, strict=False)
    return next((depth for depth, (a, b) in enumerate(pairs) if a != b), min(len(one.chain), len(other.chain)))


def test_one_number_for_each_full_block() -> None:
    assert prompt(chat(user("short"))).chain == []
    text = prompt(chat(user(LONG)))
    assert len(text.chain) == len(text.text) // BLOCK == len(LONG) // BLOCK
    assert text.blocks == len(text.text) / BLOCK
    assert len(set(text.chain)) == len(text.chain)


def test_a_continued_conversation_shares_its_prefix() -> None:
    first = prompt(chat(user(LONG)))
    second = prompt(chat(user(LONG), {"role": "assistant", "content": "Indeed."}, user(LONG)))
    assert shared(first, second) == len(first.chain)


def test_what_differs_early_shares_nothing_later() -> None:
    assert shared(prompt(chat(user("a" + LONG))), prompt(chat(user("b" + LONG)))) == 0


@pytest.mark.parametrize(
    "other",
    [
        chat(user(LONG), model="adapter"),
        chat(user(LONG), cache_salt="tenant"),
        chat(user(LONG), tools=[{"type": "function", "function": {"name": "f"}}]),
        chat({"role": "system", "content": LONG}),
    ],
    ids=["model", "salt", "tools", "role"],
)
def test_what_keeps_caches_apart(other: dict[str, Any]) -> None:
    assert shared(prompt(chat(user(LONG))), prompt(other)) == 0
    assert prompt(chat(user(LONG))).key(4) != prompt(other).key(4)


def test_parameters_and_layout_do_not_matter() -> None:
    one = prompt(chat(user(LONG)), separators=(",", ":"))
    other = prompt(chat(user(LONG), temperature=0.3, stream=True, max_tokens=9), indent=2)
    assert one.chain == other.chain
    assert one.text == other.text


def test_a_text_part_is_a_text() -> None:
    assert prompt(chat(user(LONG))).chain == prompt(chat(user([{"type": "text", "text": LONG}]))).chain


def test_images_count_by_what_they_are_not_by_their_size() -> None:
    def picture(data: str) -> Prompt:
        url = "data:image/png;base64," + data
        return prompt(chat(user([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": LONG}])))

    big, same, other = picture("A" * 100_000), picture("A" * 100_000), picture("B" * 100_000)
    assert len(big.chain) == len(prompt(chat(user(LONG))).chain) + IMAGE_BLOCKS
    assert big.chain == same.chain
    assert shared(big, other) == 0


def test_tool_calls_are_part_of_the_text() -> None:
    def called(arguments: str) -> Prompt:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return prompt(chat({"role": "assistant", "content": None, "tool_calls": [call]}, user(LONG)))

    assert shared(called("1"), called("1")) > 0
    assert shared(called("1"), called("2")) == 0


@pytest.mark.parametrize("given", [LONG, [LONG, LONG], list(range(1000)), [list(range(500))]])
def test_completions(given: Any) -> None:
    assert len(prompt({"model": "m", "prompt": given}).chain) >= 3
    assert prompt({"model": "m", "prompt": given}).chain == prompt({"model": "m", "prompt": given, "n": 2}).chain


def test_responses() -> None:
    text = prompt({"model": "m", "input": LONG})
    assert text.chain
    assert shared(text, prompt({"model": "m", "input": LONG, "instructions": "Be brief."})) == 0
    items = prompt({"model": "m", "input": [user(LONG), {"type": "function_call_output", "output": "1"}]})
    assert shared(items, prompt({"model": "m", "input": [user(LONG), user("more")]})) == len(LONG) // BLOCK


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": "text"},
        {"messages": [1, None]},
        {"messages": [{"role": 5}]},
        {"messages": [{"role": "user", "content": [1, [], "x"]}]},
        {"prompt": {"a": 1}},
        {"input": [1, [2], None, {"content": 7}]},
        {"model": 5, "messages": [{"role": "user", "content": LONG}]},
    ],
)
def test_nonsense_is_the_engines_to_refuse(body: dict[str, Any]) -> None:
    made = prompt(body)
    assert len(made.chain) == len(made.text) // BLOCK


def test_a_field_of_a_wrong_type_hides_nothing_else() -> None:
    assert prompt(chat(user(LONG), max_tokens="many")).chain == prompt(chat(user(LONG))).chain


def test_keys_are_the_same_in_every_process() -> None:
    code = (
        "import sys; from blade_router.request.parse import parse_fields;"
        "from blade_router.request.prompt_text import Prompt;"
        "print(Prompt(parse_fields(sys.stdin.buffer.read())).key(2))"
    )
    body = json.dumps(chat(user(LONG))).encode()
    printed = subprocess.run([sys.executable, "-c", code], input=body, capture_output=True, check=True).stdout
    assert int(printed) == prompt(chat(user(LONG))).key(2)


def test_a_key_stands_for_the_first_blocks_only() -> None:
    one, other = prompt(chat(user(LONG + "a"))), prompt(chat(user(LONG + "b")))
    assert one.key(4) == other.key(4)
    assert one.key(4) != one.key(5)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [user(LONG), {"role": "assistant", "content": "Indeed."}],
        [user(LONG), {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]}],
        [user([{"type": "text", "text": LONG}, {"type": "image_url", "image_url": {"url": "data:x"}}])],
        [user(LONG), {"role": "assistant", "refusal": "no"}, user("why?")],
        [user(LONG), "no message"],
        [{"content": LONG}],
    ],
    ids=["none", "texts", "calls", "parts", "without a text", "no message", "without a role"],
)
def test_messages_read_with_the_other_fields_give_the_same_text(messages: list[Any]) -> None:
    """In a larger body they are read one by one, when their text is needed."""
    small, large = chat(*messages), chat(*messages, metadata="x" * READ_AT_ONCE)
    assert prompt(small).text == prompt(large).text
    assert parse_fields(json.dumps(small).encode()).has_messages
    assert parse_fields(json.dumps(large).encode()).has_messages


def message_of(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


TOOLS = [{"name": "read", "input_schema": {"type": "object", "description": LONG}}]
CACHED = {"cache_control": {"type": "ephemeral"}}
CALL = message_of("assistant", {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": LONG}})


def result(content: Any, **more: Any) -> dict[str, Any]:
    return message_of("user", {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more})


def test_a_coding_agents_conversation_shares_all_that_came_before() -> None:
    """Each request has another first block of the system prompt, and its marks for the cache elsewhere."""

    def system(number: int) -> list[dict[str, Any]]:
        return [text(f"x-anthropic-billing-header: cch={number};"), text(LONG, **CACHED)]

    first = prompt(chat(user([text(LONG, **CACHED)]), system=system(1), tools=TOOLS))
    second = prompt(chat(user([text(LONG)]), CALL, result(LONG, **CACHED), system=system(2), tools=TOOLS))
    third = prompt(
        chat(
            user([text(LONG)]),
            CALL,
            result([text(LONG)]),
            message_of("assistant", text("Done.")),
            user([text("more", **CACHED)]),
            system=system(3),
            tools=TOOLS,
        )
    )
    assert shared(first, second) == len(first.chain) > 3 * len(LONG) // BLOCK - 2
    assert shared(second, third) == len(second.chain) > 5 * len(LONG) // BLOCK - 4


@pytest.mark.parametrize(
    "other",
    [
        chat(user(LONG), system="b" + LONG),
        chat(user(LONG), system=[text("b" + LONG)]),
        chat(user(LONG)),
        chat(user(LONG), system="a" + LONG, tools=TOOLS),
    ],
    ids=["text", "blocks", "none", "tools"],
)
def test_other_systems_share_nothing(other: dict[str, Any]) -> None:
    assert shared(prompt(chat(user(LONG), system="a" + LONG)), prompt(other)) == 0


def test_a_system_prompt_counts_as_text_or_as_blocks() -> None:
    assert prompt(chat(user(LONG), system=LONG)).text == prompt(chat(user(LONG), system=[text(LONG)])).text
    assert prompt(chat(user(LONG), system=LONG)).size > prompt(chat(user(LONG))).size + len(LONG)


def test_calls_and_results_differ_by_what_is_in_them() -> None:
    def of(last: dict[str, Any]) -> Prompt:
        return prompt(chat(user("x" * BLOCK), last))

    call = {"type": "tool_use", "id": "1", "name": "read", "input": {"path": "a"}}
    texts = {
        of(each).text
        for each in (
            message_of("assistant", call),
            message_of("assistant", {**call, "input": {"path": "b"}}),
            message_of("assistant", {**call, "name": "write"}),
            message_of("assistant", {"type": "thinking", "thinking": "a", "signature": "s"}),
            result("a"),
            result([text("b")]),
            result([{"type": "tool_result", "content": [{"type": "tool_result", "content": "deep"}]}]),
            result([{"type": "image", "source": {"data": "a"}}]),
            result([{"type": "image", "source": {"data": "b"}}]),
        )
    }
    assert len(texts) == 9


def test_only_of_a_system_prompt_something_is_left_out() -> None:
    """Engines leave out nothing else, so a text of that beginning counts everywhere else."""
    billing = "x-anthropic-billing-header: cch=1; " + LONG
    assert prompt(chat(user("hi"), system=billing)).text == prompt(chat(user("hi"))).text
    assert prompt(chat(user("hi"), system=[text(billing), text("b")])).size < len(LONG)
    for body in (
        chat(user(billing)),
        chat(user([text(billing)])),
        chat(user("hi"), result(billing)),
        chat(user("hi"), result([text(billing)])),
    ):
        assert prompt(body).size > len(LONG)
    assert shared(prompt(chat(user([text(billing + "a")]))), prompt(chat(user([text("b" + billing)])))) == 0


def test_what_is_in_a_tools_result_is_not_looked_into() -> None:
    """Reading each level of a nest would cost its depth times its size: seconds for one small body."""
    deep = '{"input": 1, "content": [' * 200 + '"x"' + "]}" * 200
    body = b'{"messages": [{"role": "user", "content": [%b]}]}' % deep.encode()
    made = Prompt(parse_fields(body))
    assert made.text.count(b"\n") == 2, "the role, the input of the first level, and a digest of all that is in it"
    assert made.size < 64
