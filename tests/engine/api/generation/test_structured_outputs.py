"""Structured outputs over HTTP, from a real engine with random weights: whatever it says is valid."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from engine_support.hard_schemas import EMPLOYEE
from engine_support.server_process import ServerProcess, running_server
from engine_support.tiny_text import write_model, write_tokenizer
from tokenizers import Tokenizer, models

IPV4 = r"((25[0-5]|(2[0-4]|1\d|[1-9]|)\d)\.){3}(25[0-5]|(2[0-4]|1\d|[1-9]|)\d)"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
DOCUMENTED: dict[str, Any] = {"temperature": 0.0, "top_p": 0.5, "top_k": 10, "max_tokens": 200}
"""What BladeLLM's documented calls send."""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("guided")
    model = write_model(folder / "tiny-chat")
    flags = ("--max_num_seqs", "16", "--enable_json_warmup", "true")
    with running_server(folder / "server", model, *flags, engine="real") as process:
        yield process


def _text(server: ServerProcess, **body: Any) -> str:
    """The one output, which must be complete."""
    body = {"prompt": "hello", "max_tokens": 300, "temperature": 1, **body}
    response = server.post("/v1/completions", **body)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    assert choice["finish_reason"] == "stop"
    return str(choice["text"])


def _streamed(server: ServerProcess, **body: Any) -> tuple[str, str]:
    """Text and reason to end, read as BladeLLM's documented client does."""
    text, reason = "", ""
    with httpx.stream("POST", f"{server.url}/v1/completions", json={**body, "stream": True}, timeout=60) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if not line.startswith("data: "):
                continue
            if line[6:] == "[DONE]":
                break
            (choice,) = json.loads(line[6:])["choices"]
            text += choice["text"]
            reason = choice["finish_reason"] or reason
    return text, reason


def test_the_documented_schema_as_a_string(real: ServerProcess) -> None:
    text, reason = _streamed(real, prompt="An employee profile:", guided_json=json.dumps(EMPLOYEE), **DOCUMENTED)
    if reason == "stop":
        jsonschema.validate(json.loads(text), EMPLOYEE)
    else:
        assert reason == "length"
        assert text.startswith('{"name": "')


def test_the_documented_expression(real: ServerProcess) -> None:
    for seed in range(5):
        options = {**DOCUMENTED, "temperature": 1.0 if seed else 0.0, "seed": seed}
        text, reason = _streamed(real, prompt="A sample IPv4 address:", guided_regex=IPV4, **options)
        assert reason == "stop"
        assert re.fullmatch(IPV4, text, re.ASCII)


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA, "strict": True}}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA), "disable_any_whitespace": True}},
    ],
)
def test_every_way_to_request_a_schema(real: ServerProcess, fields: dict[str, Any]) -> None:
    jsonschema.validate(json.loads(_text(real, **fields)), SCHEMA)
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 300, **fields}
    message = real.post("/v1/chat/completions", **body).json()["choices"][0]["message"]
    jsonschema.validate(json.loads(message["content"]), SCHEMA)


def test_choices_expressions_and_grammars(real: ServerProcess) -> None:
    assert _text(real, guided_choice=["yes", "no"]) in ("yes", "no")
    assert _text(real, structured_outputs={"choice": ["x", "y"]}) in ("x", "y")
    assert re.fullmatch("[a-f]{3}", _text(real, structured_outputs={"regex": "[a-f]{3}"}))
    grammar = 'start: "<" NAME ">"\nNAME: /[a-z]{2,4}/'
    assert re.fullmatch("<[a-z]{2,4}>", _text(real, guided_grammar=grammar))
    assert re.fullmatch("<[a-z]{2,4}>", _text(real, structured_outputs={"grammar": grammar}))
    text = real.post("/v1/completions", prompt="x", max_tokens=30, structured_outputs={"json_object": True}).json()
    assert text["choices"][0]["text"].startswith("{")
    free = {"response_format": {"type": "text"}, "guided_json": None, "structured_outputs": None}
    assert real.post("/v1/completions", prompt="x", max_tokens=3, **free).status_code == 200


def test_the_official_client_parses_responses(real: ServerProcess) -> None:
    import pydantic

    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=5)
        age: int = pydantic.Field(ge=0, le=99)

    found = real.client.chat.completions.parse(
        model="tiny-chat", messages=[{"role": "user", "content": "hi"}], max_tokens=200, response_format=Person
    )
    assert isinstance(found.choices[0].message.parsed, Person)


def test_different_structures_in_one_batch(real: ServerProcess) -> None:
    """Each output keeps to its own, free outputs among them, and one bad structure hurts nobody."""
    bodies: list[dict[str, Any]] = []
    for index in range(10):
        bodies += [
            {"guided_json": {**SCHEMA, "title": str(index % 3)}},
            {"guided_regex": f"{index}-[0-9]{{4}}"},
            {"guided_choice": [f"a{index}", f"b{index}"]},
            {"max_tokens": 8, "ignore_eos": True},
            {"guided_json": {"type": "object", "not": {}}},
        ]
    with ThreadPoolExecutor(20) as pool:
        result = list(
            pool.map(lambda body: real.post("/v1/completions", **{"prompt": "hi", "max_tokens": 200, **body}), bodies)
        )
    for body, response in zip(bodies, result, strict=True):
        if body.get("guided_json", {}).get("not") is not None:
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "guided_json"
            continue
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        if "guided_json" in body:
            jsonschema.validate(json.loads(choice["text"]), SCHEMA)
        elif "guided_regex" in body:
            assert re.fullmatch(body["guided_regex"], choice["text"])
        elif "guided_choice" in body:
            assert choice["text"] in body["guided_choice"]
        else:
            assert choice["finish_reason"] == "length"
    assert real.wait_idle()["running"] == 0


def test_a_structure_with_everything_else_together(real: ServerProcess) -> None:
    """n, seed, log-probabilities, penalties, bias, a stop string and a limit."""
    body = {
        "prompt": ["hello", "world"],
        "guided_json": SCHEMA,
        "n": 3,
        "seed": 7,
        "logprobs": 2,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.1,
        "logit_bias": {"10": 5},
        "top_k": 40,
        "max_tokens": 200,
    }
    first, second = (real.post("/v1/completions", **body).json()["choices"] for _ in range(2))
    assert first == second
    assert len(first) == 6
    assert len({choice["text"] for choice in first}) > 1
    for choice in first:
        jsonschema.validate(json.loads(choice["text"]), SCHEMA)
        assert "".join(choice["logprobs"]["tokens"]).startswith('{"name": "')
        assert all(value <= 0 for value in choice["logprobs"]["token_logprobs"])
    stopped = real.post("/v1/completions", **{**body, "stop": ['"age"']}).json()["choices"]
    assert all(choice["text"].endswith(", ") and choice["finish_reason"] == "stop" for choice in stopped)
    cut = real.post("/v1/completions", **{**body, "max_tokens": 4}).json()["choices"]
    assert all(choice["finish_reason"] == "length" for choice in cut)
    assert all(whole["text"].startswith(part["text"].rstrip("\ufffd")) for whole, part in zip(first, cut, strict=True))


def test_minimum_and_end_tokens_give_way_to_a_complete_structure(real: ServerProcess) -> None:
    assert _text(real, guided_choice=["yes", "no"], min_tokens=50) in ("yes", "no")
    assert re.fullmatch("a{5,9}", _text(real, guided_regex="a{5,9}", min_tokens=3))


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"guided_json": "{}", "guided_regex": "a"}, "guided_regex", "guided_json and guided_regex both constrain"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
            "response_format and structured_outputs.regex both constrain",
        ),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "both constrain"),
        ({"structured_outputs": {}}, "structured_outputs", "holds no constraint"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs", "structural_tag"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs", "no other white space"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs", "jsn"),
        ({"guided_json": "{"}, "guided_json", "guided_json: not valid JSON"),
        ({"guided_json": ""}, "guided_json", "empty"),
        ({"guided_json": {"type": "strng"}}, "guided_json", "#/type: must be one of"),
        (
            {"guided_json": {"not": {"type": "null"}}},
            "guided_json",
            "#/not: keyword 'not' is not supported",
        ),
        ({"guided_json": {"$ref": "#"}}, "guided_json", "endless recursion"),
        ({"guided_regex": "(a"}, "guided_regex", "guided_regex: regular expression: unclosed group"),
        ({"guided_regex": "a\udc00"}, "guided_regex", "no character"),
        ({"guided_choice": []}, "guided_choice", "at least one string"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "none of them empty"),
        ({"guided_choice": "a"}, "guided_choice", "Expected"),
        ({"guided_grammar": 'start: start "a" | "b"'}, "guided_grammar", "left recursion: start → start"),
        ({"guided_whitespace_pattern": " *"}, "guided_whitespace_pattern", "no other white space"),
        ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend", "outlines"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema is required"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": "x"}}},
            "response_format",
            "json_schema.schema: Expected `object | null`",
        ),
        ({"response_format": {"type": "yaml"}}, "response_format", "yaml"),
        ({"guided_json": {}, "ignore_eos": True}, "ignore_eos", "cannot be combined with a structure"),
        ({"guided_json": {}, "use_beam_search": True, "n": 2}, "use_beam_search", "structure"),
        ({"guided_json": {"properties": {f"p{i}": {} for i in range(10_000)}}}, "guided_json", "the limit is"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_structures_are_a_400_before_the_stream_begins(
    real: ServerProcess, fields: dict[str, Any], param: str | None, message: str, stream: bool
) -> None:
    body = json.dumps({"prompt": "hello", "stream": stream, **fields})
    response = httpx.post(
        f"{real.url}/v1/completions", content=body, headers={"content-type": "application/json"}, timeout=30
    )
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert message in error["message"]
    assert error["param"] is not None
    assert param is None or error["param"] == param


def test_a_grammar_that_only_the_engine_can_refuse_is_a_400_too(real: ServerProcess) -> None:
    for stream in (False, True):
        response = real.post("/v1/completions", prompt="x", stream=stream, guided_grammar='start: <|nosuch|> "a"')
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == "guided_grammar"
        assert error["message"].startswith("guided_grammar: ")
        assert "unknown special token" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_it_is_named_as_it_was_sent(real: ServerProcess, stream: bool) -> None:
    grammar = {"grammar": 'start: <|nosuch|> "b"'}
    for path, prompt in (("chat/completions", {"messages": [{"role": "user", "content": "x"}]}), ("responses", {})):
        response = real.post(f"/v1/{path}", stream=stream, structured_outputs=grammar, **(prompt or {"input": "x"}))
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == "structured_outputs"


def test_an_unusable_tokenizer(tmp_path: Path) -> None:
    """Structures are refused with the reason, and the rest is served."""
    model = write_model(tmp_path / "words")
    words = {word: index for index, word in enumerate(["[UNK]", "a", "b", "c", "<|im_end|>", "<|endoftext|>"])}
    write_tokenizer(model, Tokenizer(models.WordLevel(words, unk_token="[UNK]")))
    with running_server(tmp_path, model, engine="real") as server:
        for stream in (False, True):
            response = server.post("/v1/completions", prompt=[1], guided_json={}, stream=stream)
            assert response.status_code == 400, response.text
            assert "not possible with this model's tokenizer" in response.json()["error"]["message"]
            assert response.json()["error"]["param"] == "guided_json"
            text_format = {"type": "json_schema", "name": "x", "schema": {}}
            response = server.post("/v1/responses", input="a", text={"format": text_format}, stream=stream)
            assert response.status_code == 400, response.text
            assert response.json()["error"]["param"] == "text.format"
        assert server.post("/v1/completions", prompt=[1, 2], max_tokens=3).status_code == 200


TAGGED = {
    "type": "structural_tag",
    "format": {"type": "tag", "begin": "<n>", "content": {"type": "regex", "pattern": "[0-9]{1,3}"}, "end": "</n>"},
}
OLD_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<n>", "schema": {"type": "integer", "minimum": 0, "maximum": 9}, "end": "</n>"}],
    "triggers": ["<n>"],
    "at_least_one": True,
}
GBNF = 'root ::= item ("," item)*\nitem ::= [a-c]{2} | "(" root ")"'


@pytest.mark.parametrize(
    ("fields", "expression"),
    [
        ({"regex": "[a-c]{2,4}"}, r"[a-c]{2,4}"),
        ({"json_schema": '{"enum": ["x", "y"]}'}, r'"[xy]"'),
        ({"ebnf": GBNF, "temperature": 0}, r"[a-c(),]+"),
        ({"guided_grammar": GBNF, "structured_outputs": {"grammar": GBNF}, "temperature": 0}, r"[a-c(),]+"),
        ({"response_format": TAGGED}, r"<n>[0-9]{1,3}</n>"),
        ({"structured_outputs": {"structural_tag": json.dumps(TAGGED)}}, r"<n>[0-9]{1,3}</n>"),
        ({"structural_tag": OLD_TAG, "max_tokens": 60}, r"<n>\d</n>(.|\n)*"),
    ],
    ids=str,
)
def test_the_words_of_sglang_and_vllm(real: ServerProcess, fields: dict[str, Any], expression: str) -> None:
    body = {"prompt": "hello", "max_tokens": 300, "temperature": 1, "seed": 1, **fields}
    for path, prompt in (
        ("/v1/completions", {}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        sent = {key: value for key, value in {**body, **prompt}.items() if not (prompt and key == "prompt")}
        response = real.post(path, **sent)
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        text = choice["message"]["content"] if prompt else choice["text"]
        if choice["finish_reason"] == "stop":
            assert re.fullmatch(expression, text)
        else:  # a model with random weights may go on for ever where it is free to
            assert text.startswith("<n>") or set(text) <= set("abc(),")
