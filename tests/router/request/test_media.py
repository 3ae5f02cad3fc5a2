"""Pictures and videos in requests: what makes two of them alike, and how much they count."""

import asyncio
import json
from typing import Any

import pytest
from router_support.media import (
    EMBEDDED,
    LONG,
    MIB,
    SHORT,
    SIZES,
    Part,
    anthropic,
    anthropic_linked,
    bare,
    content,
    frames,
    linked,
    openai,
    picture,
    read,
    read_body,
    responses,
)

from blade_router.admission.tokens import Estimate, rough_tokens, text_bytes
from blade_router.http.errors import Refused
from blade_router.request import media, request
from blade_router.request.abridge import STEP, abridge, abridge_at_once
from blade_router.request.media import IMAGE_TOKENS, LEAST_IMAGE_BYTES, NO_MEDIA
from blade_router.request.part_limits import LEAST_PART_LIMIT, PartLimits
from blade_router.request.prompt_text import BLOCK, IMAGE_BLOCKS, MAX_BLOCKS, Prompt
from blade_router.request.usage import Usage


def shared(one: Prompt, other: Prompt) -> int:
    """Blocks they have in common."""
    pairs = zip(one.chain, other.chain, strict=False)
    return next((depth for depth, (a, b) in enumerate(pairs) if a != b), min(len(one.chain), len(other.chain)))


# what makes prompts alike


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", EMBEDDED)
async def test_a_second_question_about_a_picture_shares_its_blocks(form: Any, size: int) -> None:
    data = picture(size)
    first, second = [await read(form(data), text) for text in ("What is this?", "And who made it?")]
    other = await read(form(picture(size, 1)), "What is this?")
    assert len(first.prompt.chain) == IMAGE_BLOCKS, "a picture has blocks of its own, however little the text"
    assert shared(first.prompt, second.prompt) == IMAGE_BLOCKS
    assert shared(first.prompt, other.prompt) == 0


@pytest.mark.parametrize("size", [100_000, 3 * MIB])
@pytest.mark.parametrize("form", EMBEDDED)
@pytest.mark.parametrize("place", [0.0, 0.5, 0.7, 1.0])
async def test_pictures_that_differ_in_one_letter_differ(form: Any, size: int, place: float) -> None:
    """As uncompressed ones with the same margin do, of the same size."""
    data = picture(size)
    at = int(place * (len(data) - 1))
    changed = data[:at] + ("A" if data[at] != "A" else "B") + data[at + 1 :]
    one, other = await read(form(data), LONG), await read(form(changed), LONG)
    assert shared(one.prompt, other.prompt) == 0
    assert shared(one.prompt, (await read(form(data), LONG)).prompt) == len(one.prompt.chain)


@pytest.mark.parametrize("form", [linked, anthropic_linked])
async def test_pictures_elsewhere_are_known_by_their_urls(form: Any) -> None:
    one, same, other = [await read(form(f"https://example.com/{name}.png"), SHORT) for name in ("1", "1", "2")]
    assert shared(one.prompt, same.prompt) == IMAGE_BLOCKS
    assert shared(one.prompt, other.prompt) == 0


@pytest.mark.parametrize("size", SIZES)
async def test_text_before_a_picture_matches(size: int) -> None:
    one, other = [await read(LONG, openai(picture(size, seed)), LONG) for seed in (1, 2)]
    assert shared(one.prompt, other.prompt) == len(LONG) // BLOCK
    assert len(one.prompt.chain) == 2 * (len(LONG) // BLOCK) + IMAGE_BLOCKS


@pytest.mark.parametrize("before", ["", LONG])
@pytest.mark.parametrize("size", SIZES)
async def test_keys_stand_for_the_first_blocks_also_where_there_are_pictures(before: str, size: int) -> None:
    """By them prompts have homes, and `consistent-hash` chooses."""
    one, same = [await read(before, openai(picture(size)), text) for text in (SHORT, LONG)]
    other = await read(before, openai(picture(size, 1)), SHORT)
    text_blocks = len(before) // BLOCK
    for blocks in (text_blocks + 1, text_blocks + 4, text_blocks + IMAGE_BLOCKS):
        assert one.prompt.key(blocks) == same.prompt.key(blocks) != other.prompt.key(blocks)
    assert one.prompt.key(text_blocks) == other.prompt.key(text_blocks)
    assert one.prompt.key(text_blocks + IMAGE_BLOCKS + 1) != same.prompt.key(text_blocks + IMAGE_BLOCKS + 1)


async def test_text_behind_a_picture_depends_on_it() -> None:
    one, other = [await read(openai(picture(500, seed)), LONG) for seed in (1, 2)]
    assert not set(one.prompt.chain) & set(other.prompt.chain)


async def test_the_text_just_before_a_picture_is_part_of_its_blocks() -> None:
    one, other = [await read(text, openai(picture(500)), LONG) for text in ("One.", "Two.")]
    assert shared(one.prompt, other.prompt) == 0


async def test_the_order_of_pictures_matters() -> None:
    first, second = openai(picture(500, 1)), openai(picture(500, 2))
    one, other, twice = await read(first, second), await read(second, first), await read(first, first)
    assert shared(one.prompt, other.prompt) == 0
    assert shared(one.prompt, twice.prompt) == IMAGE_BLOCKS
    assert len(set(twice.prompt.chain)) == len(twice.prompt.chain) == 2 * IMAGE_BLOCKS


@pytest.mark.parametrize("size", SIZES)
async def test_layout_and_cache_control_do_not_matter(size: int) -> None:
    data = picture(size)
    plain = await read(anthropic(data), LONG)
    marked = await read(anthropic(data, cache_control={"type": "ephemeral"}), LONG, indent=2)
    source = {"data": data, "media_type": "image/png", "type": "base64"}
    ordered = await read({"source": source, "type": "image"}, LONG, separators=(",", ":"))
    assert plain.prompt.chain == marked.prompt.chain == ordered.prompt.chain
    assert (await read(openai(data), LONG)).prompt.chain == (await read(openai(data), LONG, indent=1)).prompt.chain


async def test_the_detail_is_part_of_a_picture() -> None:
    data = picture(5000)
    plain = await read(openai(data))
    auto, low = [await read(openai(data, detail=detail)) for detail in ("auto", "low")]
    assert plain.prompt.chain == auto.prompt.chain
    assert shared(plain.prompt, low.prompt) == 0
    assert (await read(bare(data, detail="low"))).prompt.chain == low.prompt.chain


async def test_a_picture_in_a_tools_result_is_one() -> None:
    def result(data: str) -> Part:
        return {"type": "tool_result", "tool_use_id": "t", "content": content("Here it is:", anthropic(data))}

    one, same, other = [await read(result(picture(900, seed))) for seed in (0, 0, 1)]
    assert len(one.prompt.chain) == IMAGE_BLOCKS
    assert one.prompt.chain == same.prompt.chain
    assert shared(one.prompt, other.prompt) == 0
    assert one.media.images == 1


async def test_responses_have_pictures_too() -> None:
    body = {"model": "m", "input": [{"role": "user", "content": [responses(picture(900))]}]}
    found = await read_body(body, b"/v1/responses")
    assert len(found.prompt.chain) == IMAGE_BLOCKS
    assert found.media.images == 1


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url"},
        {"type": "image_url", "image_url": None},
        {"type": "image_url", "image_url": [1]},
        {"type": "image_url", "image_url": {"url": 5, "detail": []}},
        {"type": "image", "source": "x"},
        {"type": "image", "source": {"type": "file", "file_id": "f"}},
        {"type": ["image"], "image_url": 7},
        {"image_url": "data:,"},
    ],
)
async def test_nonsense_is_the_engines_to_refuse(part: Part) -> None:
    one = await read(part, SHORT)
    assert len(one.prompt.chain) in (0, IMAGE_BLOCKS)
    assert one.prompt.chain == (await read(part, SHORT)).prompt.chain
    PartLimits(1, LEAST_PART_LIMIT).check(one)


async def test_so_many_pictures_that_not_all_are_looked_at() -> None:
    found = await read(*[linked(f"https://example.com/{number}") for number in range(1000)])
    assert len(found.prompt.chain) == MAX_BLOCKS
    assert len(found.prompt.text) < 1000 * 30, "they take no memory before anything is known of them"
    assert found.prompt.tokens >= 1000 * IMAGE_TOKENS


# work


def test_a_large_picture_is_summed_up_in_pieces() -> None:
    """Others get their turns, and the loop is held by no more than a piece."""
    body = json.dumps({"messages": [{"role": "user", "content": [openai("A" * 20 * MIB)]}]}).encode()
    steps = sum(1 for _ in abridge(body))
    assert steps >= 20
    assert len(abridge_at_once(body).json) < 300


async def test_others_get_turns_while_a_picture_of_20_mb_is_read() -> None:
    reading = asyncio.create_task(read(anthropic("A" * 20 * MIB), SHORT))
    turns = 0
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 20
    found = await reading
    assert found.abridged is not None
    assert len(found.abridged.json) < 400


@pytest.mark.interpreted
@pytest.mark.parametrize("size", [100, STEP])
async def test_nothing_is_searched_for_pictures_where_messages_are_texts(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unused:
        def finditer(self, text: bytes) -> None:
            raise AssertionError(text)

    for name in ("_IMAGE", "_FILE"):
        monkeypatch.setattr(media, name, Unused())
    body = {"model": "m", "messages": [{"role": "user", "content": '"type":"image","data":"x" ' * (size // 40)}]}
    found = await read_body(body)
    assert found.media is NO_MEDIA
    monkeypatch.setattr(request, "read_media", Unused().finditer)
    short = await read_body(body)
    PartLimits(1 + len(short.body) // LEAST_IMAGE_BYTES, MIB).check(short)


# how much they count


async def test_what_only_calls_itself_an_image_is_none() -> None:
    """Arguments of a tool are about a page with pictures, and its parameters say what a video is."""
    blocks = [{"type": "image", "src": f"/img/{number}.png"} for number in range(70)]
    called = {"type": "tool_use", "id": "t", "name": "lay_out", "input": {"blocks": blocks}}
    parameters = {"type": "object", "properties": {"of": {"type": "string"}}, "examples": [{"type": "video"}] * 70}
    tools = [{"type": "function", "function": {"name": "play", "parameters": parameters}}]
    body = {"model": "m", "messages": [{"role": "assistant", "content": [called]}], "tools": tools}
    found = await read_body(body, b"/v1/messages")
    assert found.media is NO_MEDIA
    PartLimits(64, MIB).check(found)


@pytest.mark.parametrize(
    "part",
    [
        {"image_url": "https://example.com/1.png"},
        {"image_url": {"detail": "low", "url": "https://example.com/1.png"}},
        {"source": {"data": picture(300), "media_type": "image/png", "type": "base64"}, "type": "image"},
        {"type": "image", "cache_control": {"type": "ephemeral"}, "source": {"type": "url", "url": "https://a.b/1"}},
        {"type": "image", "source": {"type": "file", "file_id": "f"}},
    ],
)
async def test_each_way_to_say_where_a_picture_is_counts_once(part: Part) -> None:
    for separators in ((",", ":"), (", ", ": ")):
        assert (await read(*[part] * 3, SHORT, separators=separators)).media.images == 3
    with pytest.raises(Refused, match="3 images"):
        PartLimits(2, MIB).check(await read(*[part] * 3, SHORT))


@pytest.mark.parametrize("indent", [None, 1, 4, 40])
@pytest.mark.parametrize("form", [linked, anthropic_linked])
async def test_however_the_json_is_laid_out_pictures_are_counted(form: Any, indent: int | None) -> None:
    assert (await read(*[form("https://a.b/1.png")] * 3, SHORT, indent=indent)).media.images == 3


@pytest.mark.parametrize("text", [SHORT, "Describe the image in the video, its image_url and its source."])
@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize("source", [{"type": "url", "url": "https://a.b/1.pdf"}, {"type": "file", "file_id": "f"}])
async def test_documents_elsewhere_count_tokens_and_are_no_images(source: Part, indent: int | None, text: str) -> None:
    """Whatever the words of the prompt are."""
    document = {"type": "document", "source": source, "title": "A report"}
    found = await read(*[document] * 65, text, indent=indent)
    assert (found.media.images, found.media.tokens) == (0, 65 * IMAGE_TOKENS)
    PartLimits(64, MIB).check(found)
    mixed = await read(*[document] * 3, anthropic_linked("https://a.b/1.png"), anthropic(picture(300)), text)
    assert (mixed.media.images, mixed.media.tokens) == (2, 5 * IMAGE_TOKENS)


@pytest.mark.parametrize("text", [SHORT, "Describe the image."])
async def test_a_document_that_says_so_elsewhere_counts_as_an_image(text: str) -> None:
    document = {"source": {"type": "url", "url": "https://a.b/1.pdf"}, "type": "document"}
    assert (await read(*[document] * 65, text)).media.images == 65


async def test_documents_hide_no_pictures_behind_them() -> None:
    document = {"type": "document", "source": {"type": "url", "url": "u"}}
    found = await read(*[document] * media.MOST_COUNTED, *[linked("https://a.b/1")] * 65)
    assert found.media.images == media.MOST_COUNTED


async def test_more_than_are_counted_are_too_many() -> None:
    found = await read(*[linked("https://a.b/1")] * (media.MOST_COUNTED + 10))
    assert found.media.images == media.MOST_COUNTED
    with pytest.raises(Refused, match="4096 images"):
        PartLimits(64, MIB).check(found)


async def test_base64_for_urls_counts_nothing_either() -> None:
    data = picture(60_000).replace("+", "-").replace("/", "_")
    assert text_bytes(await read(openai(data), SHORT)) < 300


async def test_a_field_that_is_null_hides_no_other() -> None:
    parts = [{"type": "input_image", "image_url": None, "file_id": name} for name in ("file-a", "file-b")]
    one, other = [await read(part, LONG) for part in parts]
    assert shared(one.prompt, other.prompt) == 0
    texts = [{"type": "image_url", "text": None, "image_url": {"url": f"https://a.b/{name}"}} for name in "12"]
    one, other = [await read(part, LONG) for part in texts]
    assert shared(one.prompt, other.prompt) == 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", EMBEDDED)
async def test_a_picture_counts_a_fixed_number_of_tokens(form: Any, size: int) -> None:
    found = await read(form(picture(size)), "Look. " * 100)
    text = 900
    assert found.media.images == 1
    assert text_bytes(found) < text
    for tokens in (Estimate().prompt(found), rough_tokens(found), found.prompt.tokens):
        assert IMAGE_TOKENS <= tokens <= IMAGE_TOKENS + text / 4
    several = await read(*[form(picture(size // 4, seed)) for seed in range(4)], "Look.")
    for tokens in (Estimate().prompt(several), rough_tokens(several), several.prompt.tokens):
        assert 4 * IMAGE_TOKENS <= tokens <= 4 * IMAGE_TOKENS + text


@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize("size", [4_000, 200_000, 600_000])
async def test_all_frames_of_a_video_count_as_one(size: int, indent: int | None) -> None:
    video = frames(*(picture(size, seed) for seed in range(6)))
    video["video"].insert(2, "https://example.com/" + "2" * 100)
    found = await read(SHORT, video, frames(picture(size)), SHORT, indent=indent)
    assert (found.media.images, found.media.files) == (2, 0)
    assert text_bytes(found) < 2000
    assert 2 * IMAGE_TOKENS <= Estimate().prompt(found) <= 2 * IMAGE_TOKENS + 500
    other = {**video, "video": [*video["video"][:-1], f"data:image/jpeg;base64,{picture(size, 9)}"]}
    one, two = [await read(each, LONG, indent=indent) for each in (video, other)]
    assert shared(one.prompt, two.prompt) == 0


async def test_lists_that_are_called_so_are_no_videos() -> None:
    tools = [{"type": "function", "function": {"name": "play", "parameters": {"enum": {"video": ["a", "b"]}}}}]
    body = {"model": "m", "messages": [{"role": "user", "content": content(SHORT)}], "tools": tools}
    assert (await read_body(body)).media is NO_MEDIA


@pytest.mark.parametrize("size", [60_000, 2 * MIB])
@pytest.mark.parametrize("before", ['"video": [', "video"], ids=["escaped", "word"])
async def test_texts_behind_frames_or_a_word_of_them_are_text(before: str, size: int) -> None:
    text = "data:image/png;base64," + "A" * size
    found = await read(frames("A" * 400), before, text, text)
    assert text_bytes(found) > 2 * size
    body = {"model": "m", "prompt": ["a video", text], "suffix": "video"}
    assert text_bytes(await read_body(body, b"/v1/completions")) > size


async def test_a_picture_elsewhere_counts_as_much() -> None:
    found = await read(linked("https://example.com/1.png"), SHORT)
    for tokens in (Estimate().prompt(found), rough_tokens(found), found.prompt.tokens):
        assert IMAGE_TOKENS <= tokens <= IMAGE_TOKENS + 100
    estimate = Estimate()
    for _ in range(50):
        estimate.learn(found, Usage(prompt_tokens=5000, completion_tokens=1))
    assert estimate.prompt(found) == Estimate().prompt(found), "of what is no text nothing is learned"


@pytest.mark.parametrize("size", [60_000, 3 * MIB])
async def test_what_claims_to_be_a_file_counts_as_a_picture_at_least(size: int) -> None:
    """Not nothing: a limit of tokens would be none."""
    hidden = {"type": "file", "file": {"file_data": "data:text/plain;base64," + "A" * size}}
    assert Estimate().prompt(await read(hidden)) >= IMAGE_TOKENS
    sound = {"type": "input_audio", "input_audio": {"data": picture(size), "format": "wav"}}
    assert IMAGE_TOKENS <= Estimate().prompt(await read(sound)) <= IMAGE_TOKENS + 100


@pytest.mark.parametrize("size", [60_000, 3 * MIB])
@pytest.mark.parametrize(
    "text", ["lorem ipsum, ", 'say "data":"', "x" * 5000 + ". ", "data:image/png;base64,"], ids=lambda text: text[:12]
)
async def test_a_document_is_text(text: str, size: int) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": text * (size // len(text))}
    document = await read({"type": "document", "source": source}, SHORT)
    assert text_bytes(document) == len(document.body)
    assert document.media.images == 0


@pytest.mark.parametrize("quoted", ['"type":"image"', '{"type": "image_url"}', '"data":"' + "A" * 300 + '"'])
async def test_a_text_that_speaks_of_pictures_is_text(quoted: str) -> None:
    found = await read(quoted * 100, {"type": "text", "text": quoted})
    assert (found.media.images, found.media.files) == (0, 0)
