"""Large bodies: whatever shape they have, the work and the memory of reading one are bounded."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.router.bodies import SHAPES, SIZE, read
from router_support.engine import MockEngine
from router_support.policies import endpoints
from router_support.serving import serving

from blade_protocol.routing import ModelConfig
from blade_router.admission.tokens import given_tokens, text_bytes
from blade_router.http.errors import Refused
from blade_router.http.head import RawRequest
from blade_router.policies.prefix_cache.prefix_index import PrefixIndex
from blade_router.request import abridge
from blade_router.request.abridge import LONG, MAX_STRUCTURE, MAX_TEXT, PARSED_WHOLE, STEP, abridge_at_once
from blade_router.request.models import Target, prepare
from blade_router.request.output_size import outputs
from blade_router.request.prompt_text import BLOCK, DIGEST_BYTES, IMAGE_BLOCKS, MAX_BLOCKS
from blade_router.request.request import ClientRequest, read_request
from blade_router.request.usage import Usage

MIB = 1 << 20
ALIAS = Target("", ModelConfig(name="engine's", aliases=("m",), defaults={"top_p": 0.9}))


async def request(body: bytes | dict[str, Any], path: bytes = b"/v1/chat/completions") -> ClientRequest:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await read_request(RawRequest(b"POST", path, [], True, True, body=data))


async def peak_bytes(body: bytes, *, rewrite: bool) -> int:
    """Memory that reading a body takes on top of it, at its highest."""
    tracemalloc.start()
    try:
        await read(body, rewrite=rewrite)
    except Refused:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("shape", ["input of ones", "content of ones", "empty messages", "a chat"])
async def test_memory_is_less_than_the_body_once_more(shape: str) -> None:
    body = SHAPES[shape](SIZE)
    assert await peak_bytes(body, rewrite=False) <= len(body) / 2


@pytest.mark.parametrize("shape", SHAPES)
async def test_memory_does_not_depend_on_the_shape(shape: str) -> None:
    body = SHAPES[shape](2 * MIB)
    assert await peak_bytes(body, rewrite=True) <= 8 * MIB


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_body_that_is_parsed_whole_makes_few_objects(shape: str) -> None:
    assert await peak_bytes(SHAPES[shape](PARSED_WHOLE), rewrite=True) <= 6 * MIB


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_parsed_is_small(shape: str) -> None:
    body = SHAPES[shape](SIZE // 4)
    try:
        found = abridge_at_once(body)
    except Refused:
        return
    assert len(found.json) <= MAX_TEXT + MAX_STRUCTURE
    assert len(found.json) + found.omitted_bytes + found.file_bytes >= len(body)


async def test_others_get_turns_while_a_body_is_read() -> None:
    body = SHAPES["input of ones"](SIZE)
    reading = asyncio.create_task(request(body))
    turns = 0
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= SIZE // STEP
    assert (await reading).fields.model == "m"


@pytest.mark.interpreted
@pytest.mark.parametrize("size", [STEP + 1000, PARSED_WHOLE, 2 * MIB])
async def test_bodies_that_are_complete_at_the_same_time_do_not_hold_the_loop_together(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[read_request.__module__]
    turn, worked = 0, []
    for name in ("parse_fields", "parse_abridged"):
        parse = getattr(module, name)

        def counted(data: bytes, parse: Callable[[bytes], Any] = parse) -> Any:
            worked.append(turn)
            return parse(data)

        monkeypatch.setattr(module, name, counted)
    body = SHAPES["a chat"](size)
    reading = asyncio.gather(*(request(body) for _ in range(10)))
    while not reading.done():
        await asyncio.sleep(0)
        turn += 1
    assert len(worked) == len(set(worked)) == 10


async def test_who_leaves_while_a_large_body_waits_for_its_turn_stops_no_other() -> None:
    body = SHAPES["a chat"](PARSED_WHOLE)
    first, second, third = (asyncio.create_task(request(body)) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    assert (await first).fields.model == (await third).fields.model == "m"


async def test_a_request_of_any_shape_is_answered_and_the_router_goes_on() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        for shape in ("content of ones", "a picture", "short texts"):
            body = SHAPES[shape](3 * MIB)
            response = await router.client.post("/v1/chat/completions", content=body)
            assert response.status_code == 200
            assert engine.received[-1].body == body, "it is forwarded as it came"
        refused = await router.client.post("/v1/chat/completions", content=SHAPES["nested lists"](3 * MIB))
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_complex")
    assert len(engine.received) == 3


# what an abridged body still says


def same(kept: Any, value: Any) -> bool:
    """A value and its abridgement differ in nothing but what is left out of long texts and lists of numbers."""
    if isinstance(value, dict) and isinstance(kept, dict):
        return list(kept) == list(value) and all(same(kept[name], value[name]) for name in value)
    if isinstance(value, list) and isinstance(kept, list):
        if len(kept) == len(value) and all(map(same, kept, value)):
            return True
        if "\0" not in kept:
            return False
        cut = kept.index("\0")
        return cut > 0 and kept[:cut] + kept[cut + 1 :] == value[:cut] + value[cut + 1 - len(kept) :]
    if isinstance(value, str) and isinstance(kept, str) and "\0" in kept:
        start = kept.partition("\0")[0].encode("utf-16-le", "surrogatepass")  # a pair of escapes may be parted
        return len(json.dumps(value)) > LONG and value.encode("utf-16-le", "surrogatepass").startswith(start)
    return bool(kept == value)


def document(chance: random.Random, depth: int = 0) -> Any:
    """A random value; long texts and lists of numbers are frequent."""
    kind = chance.randrange(9 if depth < 4 else 6)
    if kind == 0:
        return chance.choice([None, True, False, -1.5e-7, 0, 12345678901234])
    if kind == 1:
        return "".join(chance.choices('ab"\\/\n\té€😀\u2028', k=chance.randrange(40)))
    if kind == 2:
        return "".join(chance.choices('abcdefgh"\\é😀', k=20)) * chance.randrange(2000)
    if kind == 3:
        return [chance.randrange(-9, 10**6) for _ in range(chance.randrange(3000))]
    if kind == 4:
        return "data:image/png;base64," + "QUJD" * chance.randrange(1000)
    if kind == 5:
        return [chance.random() for _ in range(chance.randrange(200))]
    if kind == 6:
        return [document(chance, depth + 1) for _ in range(chance.randrange(6))]
    names = [*"abc", "model", "messages", "url", "text", '"', "é", "\\"]
    return {chance.choice(names): document(chance, depth + 1) for _ in range(chance.randrange(8))}


@pytest.mark.parametrize("seed", range(60))
async def test_an_abridged_document_is_the_same_but_for_its_long_parts(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abridge, "MAX_TEXT", 20_000)
    monkeypatch.setattr(abridge, "STEP", 50 + seed)
    monkeypatch.setattr("blade_router.request.request.PARSED_WHOLE", 0)
    chance = random.Random(seed)
    value = {f"field {at}": document(chance) for at in range(12)} | {"model": "m", "stream": True, "top_k": 5}
    layout: Any = chance.choice([{"separators": (",", ":")}, {"indent": 3}, {"ensure_ascii": False}])
    body = json.dumps(value, **layout).encode()
    found = abridge_at_once(body)
    assert same(json.loads(found.json), value)
    assert (found.json == body) == (not found.omissions)
    asked = await request(body)
    assert (asked.fields.model, asked.fields.stream) == ("m", True)
    prepare(asked, ALIAS, None)
    assert json.loads(asked.body) == value | {"model": "engine's", "top_p": 0.9}
    assert asked.fields.model == "engine's"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"model":"m","x":"' + b"a" * 2 * MIB, "invalid_json"),
        (b'{"model":"m","x":"' + b"a" * 2 * MIB + b"\\", "invalid_json"),
        (b'{"model":"m","x":"' + b"a" * 2 * MIB + b'\\"', "invalid_json"),
        (b'{"model":"m","x":"' + b"a" * 2 * MIB + b'"', "invalid_json"),
        (b'{"model":"m","x":"' + b"a" * 2 * MIB + b'"}]', "invalid_json"),
        (b'{"model":"m","x":tru,"y":"' + b"a" * 2 * MIB + b'"}', "invalid_json"),
        (b'{"model":"m","x":"' + b"a" * 2 * MIB + b'\xff"}', "invalid_json"),
        (json.dumps({"model": "m", "x": "a" * 2 * MIB}).encode("utf-16"), "invalid_json"),
        (b'{"model":"' + b"m" * 2 * MIB + b'"}', "value_too_long"),
        (b'{"x":"' + b"a" * 2 * MIB + b'","cache_salt":"' + b"m" * 70_000 + b'"}', "value_too_long"),
        (b'{"model":"m","max_tokens":' + b"1" * MIB + b"}", "value_too_long"),
        (b'{"model":"m","max_tokens":' + b"1" * 5000 + b"}", "value_too_long"),
        (b'{"model":"m"}' + b" " * 3 * MIB, "request_too_complex"),
    ],
)
async def test_large_bodies_that_are_refused(body: bytes, code: str) -> None:
    with pytest.raises(Refused) as refused:
        await request(body)
    assert refused.value.code == code


async def test_the_place_of_an_error_is_that_in_the_body() -> None:
    with pytest.raises(Refused, match=f"byte {2 * MIB + 18} is not UTF-8"):
        await request(b'{"model":"m","x":"' + b"a" * 2 * MIB + b'\xff"}')


async def test_a_long_name_is_kept_behind_any_text() -> None:
    name = "/models/" + "x" * 1000
    asked = await request({"prompt": "a" * 2 * MIB, "model": name, "user": "u" * 100, "x": "y" * 100})
    assert (asked.fields.model, asked.fields.user) == (name, "u" * 100)
    assert asked.abridged is not None
    assert b"y" not in asked.abridged.json


# prompts


def conversation(*turns: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"model": "m", "messages": [{"role": roles[at % 2], "content": turn} for at, turn in enumerate(turns)]}


async def test_a_conversation_that_grows_large_shares_its_prefix() -> None:
    first = (await request(conversation("Once upon a time. \n" * 40_000))).prompt
    second = (await request(conversation("Once upon a time. \n" * 40_000, "And then? " * 60_000))).prompt
    assert first.chain == second.chain[: len(first.chain)]
    assert len(second.chain) == MAX_BLOCKS - 1 or len(second.chain) == MAX_BLOCKS
    assert second.size > len(second.text), "all of it counts"
    assert second.blocks == second.size / BLOCK


async def test_a_picture_is_the_same_in_a_small_and_in_a_large_body() -> None:
    def asked(*pictures: str) -> dict[str, Any]:
        parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + each}} for each in pictures]
        text = {"type": "text", "text": "Look closely. " * 100}
        return {"model": "m", "messages": [{"role": "user", "content": [*parts[:1], text, *parts[1:], text]}]}

    small = await request(asked("A" * 400_000))
    large = await request(asked("A" * 400_000, "B" * 2_000_000))
    other = await request(asked("A" * 399_999 + "B", "B" * 2_000_000))
    assert small.abridged is None
    assert large.abridged is not None
    assert small.prompt.chain[:5] == large.prompt.chain[:5]
    assert large.prompt.chain[:5] != other.prompt.chain[:5]
    assert len(large.prompt.text) < 10_000
    assert large.prompt.size == len(large.prompt.text) + 2 * (IMAGE_BLOCKS * BLOCK - DIGEST_BYTES)
    assert text_bytes(large) < 10_000


async def test_tokens_of_a_large_prompt_are_counted() -> None:
    tokens = list(range(1_000_000))
    assert given_tokens(await request({"model": "m", "prompt": tokens}, b"/v1/completions")) == len(tokens)
    batch = {"model": "m", "prompt": [tokens[:1000]] * 900, "max_tokens": 2}
    many = await request(batch, b"/v1/completions")
    assert given_tokens(many) == 900_000
    assert outputs(many.fields) == 900


async def test_prompts_are_counted_or_bounded_from_above() -> None:
    texts = ["a, b, c [" * 10] * 5000
    assert outputs((await request({"prompt": texts}, b"/v1/completions")).fields) == 5000
    assert outputs((await request({"prompt": [""] * 100_000}, b"/v1/completions")).fields) >= 100_000


async def test_only_so_many_parts_are_read() -> None:
    asked = await request({"model": "m", "input": list(range(50_000))}, b"/v1/embeddings")
    assert len(asked.prompt.text) < 20_000
    assert asked.prompt.size > 200_000


@pytest.mark.parametrize(("blocks", "learned"), [(MAX_BLOCKS - 1, True), (MAX_BLOCKS, False)])
def test_no_share_is_learned_of_a_prompt_that_is_known_in_part(blocks: int, learned: bool) -> None:
    index, endpoint, chain = PrefixIndex(), endpoints(1)[0], list(range(1, blocks + 1))
    for _ in range(2):
        (matched,) = index.match(chain, [endpoint])
        placement = index.sent(chain, endpoint, matched)
        placement.first_byte()
        placement.ended(Usage(1_000_000, 1, 100_000))
    assert (index._caches[endpoint].unit > 0.0) is learned


def test_no_share_is_learned_of_a_conversation_that_the_engine_keeps() -> None:
    """A request that goes on from a response has little text of its own, and most of its prompt is cached."""
    index, endpoint = PrefixIndex(), endpoints(1)[0]
    for _ in range(4):
        (matched,) = index.match([1, 2, 3, 4], [endpoint])
        placement = index.sent([1, 2, 3, 4], endpoint, matched)
        placement.first_byte()
        placement.ended(Usage(900, 1, 450))
    cache = index._caches[endpoint]
    cache.capacity, unit = 64, cache.unit
    assert unit > 0.0
    for turn in range(8):
        placement = index.sent([100 + turn, 200 + turn], endpoint, 0)
        placement.first_byte()
        placement.ended(Usage(50_000, 1, 49_900))
    assert (cache.capacity, cache.unit) == (64, unit), "the cache did not grow"
