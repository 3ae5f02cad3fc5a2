"""A stream's way from the engine's message to the connection, without an engine and without HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_support.exposition import read_exposition
from engine_support.tiny_text import write_tokenizer
from examples.families.tokenizers import byte_fallback_tokenizer
from starlette.types import Message

from blade_llm.api.chat import ChatSerializer
from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.served_model import ModelSource, load_served_model
from blade_llm.api.common.shared_stats import SharedStats
from blade_llm.api.completion_serializer import CompletionSerializer
from blade_llm.api.generation.generate import ResponseSerializer, stream_events
from blade_llm.api.generation.logprobs import TokenNames
from blade_llm.api.generation.requests import StreamOptions
from blade_llm.api.generation.result import Choice, ChoiceUpdate, GenerationResult, merge
from blade_llm.api.generation.sse import EventStream
from blade_llm.api.metrics.requests import NUM_COUNTERS
from blade_llm.engine.client import EngineClient, EngineDeadError, Generation
from blade_llm.engine.messages import GenerateRequest, RequestOutput, StepOutputs
from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs
from blade_llm.text.tokenizer import Tokenizer
from blade_protocol import metrics

TEXT = 'a "quote", a caf\u00e9, \u4e2d\u6587, \U0001f680 and a\nline'
USAGE = StreamOptions(include_usage=True)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_tokenizer(tmp_path_factory.mktemp("tokenizer")))


class Connection:
    """The server's side of one, as uvicorn gives it: ``send`` waits while it is blocked."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.writable = asyncio.Event()
        self.writable.set()
        self.left = asyncio.Event()

    async def send(self, message: Message) -> None:
        await self.writable.wait()
        self.messages.append(message)

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages if message["type"] == "http.response.body"]

    @property
    def text(self) -> str:
        return b"".join(self.bodies).decode()


class Streaming:
    """One streamed request of ``n`` choices. ``step`` is what the engine's message does."""

    def __init__(
        self, folder: Path, tokenizer: Tokenizer, serializer: ResponseSerializer, n: int = 1, **sampling: Any
    ) -> None:
        params = SamplingParams(seed=0, max_tokens=1000, **sampling)
        self.client = EngineClient(f"ipc://{folder / 'engine'}")
        self.ids = [f"r{index}" for index in range(n)]
        requests = [GenerateRequest(request_id=i, prompt_token_ids=[1], sampling=params) for i in self.ids]
        self.generation: Generation = self.client.submit(requests)
        choices = [Choice(index, tokenizer, [1], params) for index in range(n)]
        model = load_served_model(ModelSource(folder=str(tokenizer.folder), vocab_size=384, names=("m",)))
        self.context = ServerContext(self.client, model, 2048, SharedStats(1, NUM_COUNTERS))
        result = GenerationResult(self.generation, choices, prompt_tokens=1)
        self.connection = Connection()
        self.response = EventStream(stream_events(self.context, result, serializer, USAGE), self.generation)
        self.task = asyncio.ensure_future(
            self.response({"type": "http"}, self.connection.receive, self.connection.send)
        )

    def step(self, *outputs: RequestOutput) -> None:
        touched: list[Generation] = []
        self.client._receive(StepOutputs(outputs=list(outputs)), touched)
        for generation in touched:
            generation.deliver()

    def tokens(self, *token_ids: int, index: int = 0, **fields: Any) -> None:
        self.step(RequestOutput(request_id=self.ids[index], token_ids=list(token_ids), **fields))


@pytest.fixture
async def made(tmp_path: Path) -> Any:
    """Makes :class:`Streaming` objects and closes them."""
    found: list[Streaming] = []

    def make(*args: Any, **options: Any) -> Streaming:
        found.append(Streaming(tmp_path, *args, **options))
        return found[-1]

    yield make
    for streaming in found:
        streaming.task.cancel()
        await asyncio.wait([streaming.task])
        streaming.client.close()


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def _chat(tokenizer: Tokenizer, *, with_logprobs: bool = False) -> ChatSerializer:
    return ChatSerializer("chatcmpl-1", "m", TokenNames(tokenizer), with_logprobs=with_logprobs)


def _completion(tokenizer: Tokenizer, *, with_logprobs: bool = False) -> CompletionSerializer:
    return CompletionSerializer("cmpl-1", "m", TokenNames(tokenizer), with_logprobs=with_logprobs)


def _texts(connection: Connection) -> list[str]:
    events = [json.loads(event[6:]) for event in connection.text.split("\n\n") if event.startswith("data: {")]
    choices = [event["choices"][0] for event in events if event.get("choices")]
    return [choice["delta"]["content"] for choice in choices if choice["delta"].get("content")]


async def test_events_leave_where_the_message_arrives(made: Any, tokenizer: Tokenizer) -> None:
    stream = made(tokenizer, _chat(tokenizer))
    ids = tokenizer.encode(TEXT)
    await _settle()
    stream.tokens(ids[0])
    await _settle()
    for number, token_id in enumerate(ids[1:], 2):
        stream.tokens(token_id)
        whole = tokenizer.decode(ids[:number]).rstrip("\ufffd")
        assert "".join(_texts(stream.connection)) == whole, "at once, no task has run"
    stream.tokens(finish_reason="length")
    await stream.task
    assert "".join(_texts(stream.connection)) == TEXT
    assert stream.connection.text.endswith("data: [DONE]\n\n")
    assert json.loads(stream.connection.text.split("\n\n")[-3][6:])["usage"]["completion_tokens"] == len(ids)


@pytest.mark.parametrize("drafted", [0, 3])
async def test_usage_has_the_draft_tokens(made: Any, tokenizer: Tokenizer, drafted: int) -> None:
    stream = made(tokenizer, _chat(tokenizer), n=2)
    await _settle()
    stream.tokens(*tokenizer.encode("ab"), draft_tokens=drafted, accepted_tokens=drafted and 1)
    stream.tokens(*tokenizer.encode("cd"), index=1, draft_tokens=drafted, accepted_tokens=drafted and 1)
    stream.tokens(*tokenizer.encode("e"), finish_reason="length")
    stream.tokens(index=1, finish_reason="length", draft_tokens=drafted)
    await stream.task
    usage = json.loads(stream.connection.text.split("\n\n")[-3][6:])["usage"]
    details = {"accepted_prediction_tokens": 2, "rejected_prediction_tokens": 7} if drafted else None
    assert usage.get("completion_tokens_details") == details


async def test_a_slow_client_gets_what_piled_up_as_one_event(made: Any, tokenizer: Tokenizer) -> None:
    stream = made(tokenizer, _chat(tokenizer))
    await _settle()
    stream.tokens(*tokenizer.encode("a"))
    await _settle()
    stream.connection.writable.clear()
    for character in "bcdef":
        stream.tokens(*tokenizer.encode(character))
        await _settle()
    assert _texts(stream.connection) == ["a"]
    stream.connection.writable.set()
    await _settle()
    assert _texts(stream.connection) == ["a", "b", "cdef"], "b was on its way when the connection filled up"
    stream.tokens(*tokenizer.encode("g"))
    assert _texts(stream.connection)[-1] == "g", "and then at once again"
    stream.connection.writable.clear()
    stream.tokens(*tokenizer.encode("h"), finish_reason="length")
    await _settle()
    stream.connection.writable.set()
    await stream.task
    assert "".join(_texts(stream.connection)) == "abcdefgh"
    assert stream.connection.messages[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


@pytest.mark.parametrize("blocked", [False, True])
async def test_a_client_that_leaves_aborts(made: Any, tokenizer: Tokenizer, blocked: bool) -> None:
    stream = made(tokenizer, _chat(tokenizer))
    await _settle()
    stream.tokens(40)
    await _settle()
    if blocked:
        stream.connection.writable.clear()
        stream.tokens(41)
        await _settle()
    stream.connection.left.set()
    await _settle()
    stream.connection.writable.set()  # as uvicorn does for a connection that is gone
    await stream.task
    assert stream.client.num_open == 0
    counted = read_exposition(stream.context.metrics.render().decode())
    assert counted[metrics.ENGINE_REQUESTS + '_total{finished_reason="abort"}'] == 1


async def test_an_engine_that_dies_in_mid_stream_is_reported(made: Any, tokenizer: Tokenizer) -> None:
    stream = made(tokenizer, _chat(tokenizer))
    await _settle()
    stream.tokens(40)
    await _settle()
    stream.client.fail(EngineDeadError("the engine is gone: why"))
    await stream.task
    assert json.loads(stream.connection.text.split("\n\n")[-2][6:])["error"]["message"] == "the engine is gone: why"


async def test_an_error_while_events_are_made_ends_that_stream_alone(
    made: Any, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: ChatSerializer, update: ChoiceUpdate) -> bytes:
        raise RuntimeError("broken")

    stream, other = made(tokenizer, _chat(tokenizer)), made(tokenizer, _completion(tokenizer))
    await _settle()
    for each in (stream, other):
        each.tokens(40)
    await _settle()
    monkeypatch.setattr(ChatSerializer, "chunk", broken)
    for each in (stream, other):
        each.tokens(40)
    await stream.task
    assert "internal error" in stream.connection.text
    assert other.connection.text.count("data: ") == 2


async def test_a_stop_string_ends_it(made: Any, tokenizer: Tokenizer) -> None:
    stream = made(tokenizer, _chat(tokenizer), n=2, stop=("STOP",))
    await _settle()
    stream.tokens(*tokenizer.encode("on"), index=1)
    await _settle()
    for character in "one STOP two":
        stream.tokens(*tokenizer.encode(character))
    assert stream.client.num_open == 1, "the abort is sent to the engine at once"
    stream.tokens(finish_reason="length", index=1)
    await stream.task
    assert "".join(_texts(stream.connection)) == "onone "


def _finished(choice: Choice, token_ids: list[int], **last: Any) -> ChoiceUpdate:
    """All of a choice with log-probabilities, whose tokens came one by one."""
    updates = []
    for token_id in token_ids:
        logprobs = [TokenLogprobs(-0.5, (40, token_id), (-0.25, -0.5))]
        updates.append(choice.add(RequestOutput(request_id="r", token_ids=[token_id], logprobs=logprobs)))
    updates.append(choice.add(RequestOutput(request_id="r", finish_reason="length")))
    return merge([update for update in updates if update is not None])


@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("skip", [False, True])
def test_the_tokens_of_logprobs_joined_are_the_text(
    tokenizer: Tokenizer, tmp_path: Path, fallback: bool, skip: bool
) -> None:
    if fallback:
        tokenizer = Tokenizer(write_tokenizer(tmp_path, byte_fallback_tokenizer()))
    special, first_byte = 1, tokenizer.encode("\u9f98")[-3]
    token_ids = [special, *tokenizer.encode("hello \u9f98"), special, *tokenizer.encode("\u9f98 hello"), first_byte]
    choice = Choice(0, tokenizer, [], SamplingParams(seed=0, skip_special_tokens=skip))
    update = _finished(choice, token_ids)
    assert ("hello" in update.text, "\u9f98" in update.text, update.text[-1]) == (True, True, "\ufffd")
    found = _completion(tokenizer, with_logprobs=True).choice(update)["logprobs"]
    assert "".join(found["tokens"]) == update.text
    assert len(found["tokens"]) == len(token_ids)
    for token, top, offset in zip(found["tokens"], found["top_logprobs"], found["text_offset"], strict=True):
        assert top[token] == -0.5
        assert update.text[offset:].startswith(token)


def _reference(serializer: ResponseSerializer, updates: list[ChoiceUpdate], tokenizer: Tokenizer) -> Iterator[str]:
    """The events' JSON, made the plain way."""
    chat = isinstance(serializer, ChatSerializer)
    for update in updates:
        content: dict[str, Any] = {"text": update.text}
        if chat:
            content = {"delta": {"content": update.text} if update.text else {}}
        logprobs = serializer.choice(update)["logprobs"]
        choice = {"index": update.index, **content, "logprobs": logprobs, "finish_reason": update.finish_reason}
        kind = "chat.completion.chunk" if chat else "text_completion"
        yield json.dumps(
            {**serializer.head(), "object": kind, "choices": [choice]}, ensure_ascii=False, separators=(",", ":")
        )


@pytest.mark.parametrize("with_logprobs", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_the_bytes_of_events_are_those_of_plain_json(tokenizer: Tokenizer, chat: bool, with_logprobs: bool) -> None:
    serializer: ResponseSerializer = _completion(tokenizer, with_logprobs=with_logprobs)
    if chat:
        serializer = _chat(tokenizer, with_logprobs=with_logprobs)
    params = SamplingParams(seed=0)
    choice, updates = Choice(3, tokenizer, [1], params), list[ChoiceUpdate]()
    for token_id in [*tokenizer.encode(TEXT), 3 + 0xF0]:  # the last one begins a character that does not come
        logprobs = [TokenLogprobs(-0.5, (token_id, 40), (-0.5, -1.5))] if with_logprobs else None
        update = choice.add(RequestOutput(request_id="r", token_ids=[token_id], logprobs=logprobs))
        updates += [] if update is None else [update]
    last = choice.add(RequestOutput(request_id="r", finish_reason="length"))
    assert last is not None
    updates += [last, ChoiceUpdate(3, "", [], "stop"), ChoiceUpdate(0, '\x00\x1f\u2028"\\/', [], None)]
    expected = [f"data: {event}\n\n" for event in _reference(serializer, updates, tokenizer)]
    found = [serializer.chunk(update).decode() for update in updates]
    assert found[:-1] == expected[:-1]
    assert json.loads(found[-1][6:]) == json.loads(expected[-1][6:]), "control characters may be spelled in two ways"


async def test_a_comment_begins_a_stream_and_waits_for_nothing(made: Any, tokenizer: Tokenizer) -> None:
    stream = made(tokenizer, _chat(tokenizer))
    await _settle()
    stream.connection.writable.clear()
    stream.response.comment()
    assert stream.connection.messages == [], "a connection that takes nothing has enough to send"
    stream.connection.writable.set()
    for _ in range(2):
        stream.response.comment()
    assert [message["type"] for message in stream.connection.messages] == [
        "http.response.start",
        *["http.response.body"] * 2,
    ]
    ids = tokenizer.encode(TEXT)
    stream.tokens(ids[0])
    await _settle()
    stream.response.comment()
    stream.connection.writable.clear()
    stream.tokens(ids[1])
    await _settle()
    stream.response.comment()
    stream.connection.writable.set()
    await _settle()
    stream.tokens(*ids[2:], finish_reason="length")
    await stream.task
    assert stream.connection.text.startswith(": keep-alive\n\n" * 2 + "data: ")
    assert stream.connection.text.count(": keep-alive\n\n") == 3, "none in the middle of an event that is blocked"
    assert "".join(_texts(stream.connection)) == TEXT
    assert [message["type"] for message in stream.connection.messages].count("http.response.start") == 1


async def test_an_error_after_a_comment_is_an_event(made: Any, tokenizer: Tokenizer) -> None:
    stream = made(tokenizer, _chat(tokenizer))
    await _settle()
    stream.response.comment()
    stream.client.fail(EngineDeadError("the engine is gone"))
    await stream.task
    comment, event, rest = stream.connection.text.split("\n\n")
    assert (comment, rest) == (": keep-alive", "")
    assert json.loads(event.removeprefix("data: "))["error"]["code"] == "engine_dead"
    assert stream.connection.messages[0]["status"] == 200
