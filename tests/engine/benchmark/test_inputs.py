"""Prompts: lengths as requested, files as they are, and servers that do not accept or report everything."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import statistics
from asyncio import StreamWriter as Writer
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_support.fake_openai import (
    FakeOpenAI,
    ReceivedRequest,
    Script,
    respond,
    send_error,
    tokens_of,
)

from blade_llm.benchmark.calibration import Calibration, calibrate
from blade_llm.benchmark.client.client import Client
from blade_llm.benchmark.client.target import Target, parse_address
from blade_llm.benchmark.errors import BenchmarkError
from blade_llm.benchmark.inputs import make_samples
from blade_llm.benchmark.options import Options
from blade_llm.benchmark.workload.datasets import Sample
from blade_llm.benchmark.workload.words import token_counter

DEMO = Path(__file__).parents[3] / "examples" / "demo_model" / "model"


async def find(script: Script = respond, **more: Any) -> tuple[Calibration, FakeOpenAI]:
    async with FakeOpenAI(script) as server:
        target = Target(address=parse_address(server.url), endpoint="chat", model="fake", **more)
        client = Client(target.address)
        try:
            return await calibrate(client, target), server
        finally:
            client.close()


Made = tuple[list[Sample], Sequence[str], FakeOpenAI]


async def samples(count: int, script: Script = respond, **options: Any) -> Made:
    async with FakeOpenAI(script) as server:
        chosen = Options(base_url=server.url, **options)
        target = Target(address=parse_address(server.url), endpoint=chosen.endpoint, model="fake")
        client = Client(target.address)
        try:
            found = await calibrate(client, target)
            made, notes = await make_samples(chosen, client, found, random.Random(4))
            return list(itertools.islice(made, count)), notes, server
        finally:
            client.close()


def refusing(*fields: str) -> Script:
    async def script(request: ReceivedRequest, writer: Writer) -> None:
        known = [field for field in fields if field in request.body]
        if known:
            await send_error(writer, 400, f"Unrecognized request argument: {known[0]}")
        else:
            await respond(request, writer)

    return script


async def without_usage(request: ReceivedRequest, writer: Writer) -> None:
    request.body.pop("stream_options", None)
    await respond(request, writer)


async def test_a_good_server_is_queried_once() -> None:
    found, server = await find()
    assert found.notes == []
    assert found.short.input_tokens == tokens_of("the")
    assert len(server.requests) == 1
    assert server.requests[0].body["max_tokens"] == 1


@pytest.mark.parametrize(
    ("fields", "usage", "ignore_eos", "said"),
    [
        (["stream_options"], False, True, "refuses stream_options"),
        (["ignore_eos"], True, False, "refuses ignore_eos"),
        (["stream_options", "ignore_eos"], False, False, "refuses ignore_eos"),
    ],
)
async def test_a_server_that_refuses_something_is_queried_for_less(
    fields: list[str], usage: bool, ignore_eos: bool, said: str
) -> None:
    found, _ = await find(refusing(*fields))
    assert (found.target.include_usage, found.target.ignore_eos) == (usage, ignore_eos)
    assert any(said in note for note in found.notes)
    assert any("counted as events" in note for note in found.notes) is not usage


async def test_a_server_that_refuses_everything_is_quoted() -> None:
    with pytest.raises(BenchmarkError, match=r"HTTP 400: Unrecognized request argument: stream"):
        await find(refusing("stream"))


async def test_what_is_not_requested_is_not_tried() -> None:
    found, server = await find(ignore_eos=False)
    assert not found.target.ignore_eos
    assert not any("ignore_eos" in request.body for request in server.requests)


async def test_random_words_have_the_length_the_server_counts() -> None:
    made, notes, server = await samples(60, input_len=200, output_len=7)
    lengths = [tokens_of(str(sample.prompt)) for sample in made]
    assert statistics.fmean(lengths) == pytest.approx(200, rel=0.02)
    assert statistics.pstdev(lengths) < 15
    assert {sample.output_tokens for sample in made} == {7}
    assert len({sample.prompt for sample in made}) == 60, "each is new to the prefix cache"
    assert notes == ()
    assert len(server.requests) == 2


async def test_without_usage_lengths_are_said_to_be_estimates() -> None:
    made, notes, _ = await samples(1, without_usage, input_len=130, output_len=7)
    assert 80 <= len(str(made[0].prompt).split()) <= 130
    assert any("estimates" in note for note in notes)


@pytest.mark.parametrize("tokens", [12, 100, 777])
async def test_with_the_tokenizer_lengths_are_exact(tokens: int) -> None:
    """The server puts ten tokens around a prompt."""
    count = token_counter(DEMO)

    async def script(request: ReceivedRequest, writer: Writer) -> None:
        body = {**request.body, "stream_options": {"include_usage": True}}
        words = " ".join(["a"] * count(request.text))
        await respond(dataclasses.replace(request, body={**body, "messages": [{"content": words}]}), writer)

    made, _, _ = await samples(5, script, input_len=tokens, tokenizer=DEMO)
    assert [count(str(sample.prompt)) for sample in made] == [tokens - 10] * 5


async def test_sharegpt_like_lengths_spread() -> None:
    made, _, _ = await samples(300, num_requests=300)
    outputs = [sample.output_tokens for sample in made]
    inputs = [tokens_of(str(sample.prompt)) for sample in made]
    assert max(outputs) > 5 * min(outputs)
    assert max(inputs) > 10 * min(inputs)
    fixed, _, _ = await samples(20, output_len=9, max_len=100)
    assert {sample.output_tokens for sample in fixed} == {9}
    assert max(tokens_of(str(sample.prompt)) for sample in fixed) <= 110


def conversation(*turns: str) -> dict[str, Any]:
    named = zip(itertools.cycle(["human", "gpt"]), turns, strict=False)
    return {"id": "x", "conversations": [{"from": name, "value": turn} for name, turn in named]}


async def test_a_file_of_conversations(tmp_path: Path) -> None:
    file = tmp_path / "sharegpt.json"
    text = "a bcd ef " * 40
    too_long = "abc " * 5000
    file.write_text(
        json.dumps([conversation("only one"), conversation(text, text * 2, "more"), conversation(too_long, text)])
    )
    made, _, server = await samples(3, dataset=file)
    assert {sample.prompt for sample in made} == {text}
    assert made[0].output_tokens == pytest.approx(240, rel=0.1)
    assert len(server.requests) == 2, "characters per token were measured"
    fixed, _, _ = await samples(1, dataset=file, output_len=5)
    assert fixed[0].output_tokens == 5


async def test_files_of_prompts(tmp_path: Path) -> None:
    text = tmp_path / "prompts.txt"
    text.write_text("What is up?\n\nWhat is down?\n")
    made, _, _ = await samples(4, prompts=text)
    assert sorted({str(sample.prompt) for sample in made}) == ["What is down?", "What is up?"]
    assert {sample.output_tokens for sample in made} == {128}

    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    lines = tmp_path / "prompts.jsonl"
    lines.write_text("\n".join(map(json.dumps, ["a", {"prompt": "b", "max_tokens": 3}, {"messages": chat}])))
    made, _, _ = await samples(3, prompts=lines, output_len=8)
    bodies = {json.dumps(sample.body("chat")["messages"]): sample.output_tokens for sample in made}
    assert bodies == {
        json.dumps([{"role": "user", "content": "a"}]): 8,
        json.dumps([{"role": "user", "content": "b"}]): 3,
        json.dumps(chat): 8,
    }
    with pytest.raises(BenchmarkError, match="completions endpoint"):
        await samples(1, prompts=lines, endpoint="completions")


@pytest.mark.parametrize(
    ("option", "name", "text", "said"),
    [
        ("dataset", "a.json", "[", "cannot be read"),
        ("dataset", "a.json", "[]", "conversation of two turns"),
        ("dataset", "a.json", json.dumps([conversation("a", "b")]), "--max_len"),
        ("prompts", "a.txt", "\n", "is empty"),
        ("prompts", "a.jsonl", '"a"\n{"text": "b"}', "prompt 2"),
        ("prompts", "a.jsonl", "{", "prompt 1"),
        ("prompts", "missing.txt", None, "cannot be read"),
        ("tokenizer", "folder", None, "tokenizer.json is missing"),
    ],
)
async def test_bad_files(tmp_path: Path, option: str, name: str, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(BenchmarkError, match=said):
        await samples(1, respond, **{option: tmp_path / name})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 3, "request_rate": 2.0}, "give one of them"),
        ({"input_len": 3, "prompts": Path("x")}, "exclude each other"),
        ({"find_rate": True}, "--slo"),
        ({"max_len": 3}, "no room"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BenchmarkError, match=said):
        Options(base_url="http://x", **options)
