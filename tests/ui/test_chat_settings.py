"""What the chat's requests are sent with, and what comes of it: sampling, formats, tools, token probabilities, code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Page, expect
from ui_support.chat import Chat, text_of
from ui_support.demo import ANSWER, NAME, QUESTION, Demo
from ui_support.watched import Open

FIELDS = {
    "Temperature": ("0.5", "temperature", 0.5),
    "Top p": ("0.9", "top_p", 0.9),
    "Top k": ("20", "top_k", 20),
    "Min p": ("0.05", "min_p", 0.05),
    "Seed": ("7", "seed", 7),
    "Repetition": ("1.1", "repetition_penalty", 1.1),
    "Presence": ("0.1", "presence_penalty", 0.1),
    "Frequency": ("-0.1", "frequency_penalty", -0.1),
    "Max tokens": ("6", "max_completion_tokens", 6),
    "Min tokens": ("2", "min_tokens", 2),
    "Stop strings": ("never\nto be found", "stop", ["never", "to be found"]),
    "Stop token ids": ("3, 4", "stop_token_ids", [3, 4]),
    "Keep the stop string": ("true", "include_stop_str_in_output", True),
    "Ignore end of sequence": ("true", "ignore_eos", True),
    "Skip special tokens": ("false", "skip_special_tokens", False),
    "Truncate the prompt": ("100", "truncate_prompt_tokens", 100),
    "Truncated side": ("right", "truncation_side", "right"),
    "Logit bias": ('{"42": -100}', "logit_bias", {"42": -100}),
    "Bad words": ("pirate", "bad_words", ["pirate"]),
    "Return the reasoning": ("false", "include_reasoning", False),
    "Template arguments": ('{"enable_thinking": false}', "chat_template_kwargs", {"enable_thinking": False}),
    "Priority": ("1", "priority", 1),
    "Cache salt": ("mine", "cache_salt", "mine"),
}
"""Fields that go together: what is typed, the name in the request, its value there."""

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["len", "sorted"]}, "found": {"type": "boolean"}},
    "required": ["name", "found"],
    "additionalProperties": False,
}
LOOKUP = {
    "name": "lookup",
    "description": "Look up a built-in function in Python's documentation.",
    "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}


@pytest.fixture
def chat(page: Page) -> Chat:
    return Chat(page)


def test_every_sampling_field_is_sent_and_taken(chat: Chat) -> None:
    for label, (typed, _, _) in FIELDS.items():
        chat.set(label, typed)
    body = chat.send(QUESTION)
    wanted = {name: value for _, name, value in FIELDS.values()}
    assert {name: body.get(name) for name in wanted} == wanted
    response = chat.response()
    expect(response.locator(".stats")).to_contain_text("6 tokens")
    expect(response.locator(".failure")).to_have_count(0)
    chat.settings.get_by_role("button", name="Reset").click()
    body = chat.send(QUESTION)
    chat.response()
    assert not wanted.keys() & body.keys()


def test_what_cannot_be_sent_is_said_at_the_field(chat: Chat) -> None:
    chat.set("Top p", "2")
    expect(chat.settings.get_by_text("Top p: at most 1")).to_be_visible()
    chat.message.fill(QUESTION)
    chat.message.press("Enter")
    expect(chat.page.get_by_role("alert")).to_contain_text("Top p: at most 1")
    expect(chat.turns).to_have_count(0)
    expect(chat.message).to_have_value(QUESTION)


def test_what_the_engine_refuses_is_shown_and_the_chat_goes_on(context: Open, service: Demo) -> None:
    watched = context(service.origin, width=1600)
    watched.expect("status of 400")
    page = watched.page()
    chat = Chat(page)
    page.route("**/v1/chat/completions", lambda route: route.continue_(post_data=b'{"messages": "none"}'), times=1)
    chat.message.fill(QUESTION)
    with page.expect_response("**/v1/chat/completions") as refused:
        chat.message.press("Enter")
    failure = chat.response().locator(".failure")
    expect(failure).to_contain_text(str(refused.value.status))
    assert refused.value.status == 400
    chat.greedy()
    chat.turns.last.get_by_role("button", name="Regenerate").click()
    expect(chat.turns.last).to_contain_text("2/2")
    assert text_of(chat.response()) == ANSWER


def test_a_json_schema_holds(chat: Chat) -> None:
    chat.set("The output is", "json_schema")
    chat.set("JSON Schema", json.dumps(SCHEMA))
    found = json.loads(text_of(chat.ask(QUESTION)))
    assert found["name"] in ("len", "sorted")
    assert isinstance(found["found"], bool)


def test_a_tool_is_called_and_its_result_used(chat: Chat) -> None:
    chat.greedy()
    chat.set("Functions the model may call, as JSON", json.dumps([LOOKUP]))
    response = chat.ask(f"{QUESTION} Look it up.")
    call = response.get_by_role("form", name="Tool calls")
    expect(call.locator(".mono").first).to_have_text("lookup")
    assert json.loads(call.locator("pre").inner_text()) == {"name": "len"}
    call.get_by_label("What lookup returns").fill("Return the number of items in a container.")
    call.get_by_role("button", name="Continue with this result").click()
    expect(chat.turns).to_have_count(4)
    assert "number of items in a container" in text_of(chat.response())


def test_tokens_tell_their_probability_and_alternatives(chat: Chat) -> None:
    chat.greedy()
    chat.toolbar.get_by_role("button", name="Tokens").click()
    response = chat.ask(QUESTION)
    tokens = response.get_by_role("option")
    assert "".join(tokens.all_inner_texts()).strip() == ANSWER
    alternatives = response.locator(".alternatives")
    expect(alternatives).to_be_hidden()
    tokens.nth(2).hover()
    expect(alternatives.locator(".chosen")).to_contain_text("%")
    assert alternatives.locator(":scope > div").count() >= 5
    response.get_by_role("listbox").hover(position={"x": 1, "y": 1})
    tokens.first.focus()
    chat.page.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
    expect(tokens.nth(1)).to_have_attribute("aria-selected", "true")
    expect(alternatives.locator(".chosen")).to_contain_text((tokens.nth(1).text_content() or "").strip())
    chat.page.keyboard.press("Escape")
    expect(alternatives).to_be_hidden()
    response.get_by_role("button", name="Show token probabilities").click()
    assert text_of(response) == ANSWER


def test_the_request_as_code_runs(chat: Chat, service: Demo, tmp_path: Path) -> None:
    chat.greedy()
    chat.set("System prompt", "It's a 'test' of $HOME and \"quotes\".")
    said = text_of(chat.ask(QUESTION))
    chat.toolbar.get_by_role("button", name="Code").click()
    dialog = chat.page.get_by_role("dialog", name="This request as code")

    def code(tab: str) -> str:
        dialog.get_by_role("tab", name=tab, exact=True).click()
        expect(dialog.get_by_role("tabpanel")).to_have_accessible_name(tab)
        return dialog.locator("pre").inner_text()

    curl = code("curl")
    dialog.get_by_role("button", name="Copy the code").click()
    expect(chat.page.get_by_text("Copied")).to_be_attached()
    assert chat.page.evaluate("navigator.clipboard.readText()") == curl
    printed = run(["bash", "-c", curl], tmp_path).splitlines()
    assert printed[-1] == "200"
    events = [json.loads(line[6:]) for line in printed if line.startswith("data: {")]
    assert "".join(each["choices"][0]["delta"].get("content") or "" for each in events if each["choices"]) == said

    program = tmp_path / "program.py"
    program.write_text(code("Python"))
    assert run([sys.executable, str(program)], tmp_path).strip() == said

    manifest = yaml.safe_load(code("LLMService"))
    assert (manifest["kind"], manifest["metadata"]["name"]) == ("LLMService", NAME)
    assert manifest["spec"]["model"] == service.running.service(NAME)["spec"]["model"]
    assert "status" not in manifest


def run(command: list[str], home: Path) -> str:
    """What it prints, if it ends well; curl says the status code at the end."""
    (home / ".curlrc").write_text('write-out = "\\n%{http_code}"\n')
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "*", "no_proxy": "*"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
