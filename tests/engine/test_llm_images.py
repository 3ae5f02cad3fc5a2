"""Images in the offline API: what it generates about them is what transformers and a server generate, and what cannot
be used is refused by name."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_support.image_cases import encode, waves
from engine_support.served_vision import FLAGS, IMAGE, ServedVision, part, save_served, user, words
from engine_support.server_process import running_server
from PIL import Image

from blade_llm import LLM, SamplingParams
from blade_llm.api.images.serving import ImageServing, NoImages
from blade_llm.models.config import load_model_config
from blade_llm.offline_images import MediaSources, offline_serving
from blade_llm.sampling.grammar_spec import GrammarSpec

COUNT = 8
GREEDY = SamplingParams(max_tokens=COUNT, temperature=0, ignore_eos=True)
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "kv_cache_bytes": 32 << 20,
    "num_threads": 1,
    "max_num_seqs": 8,
    "encoder_cache_bytes": 4 << 20,
}
Messages = list[dict[str, Any]]


def file(height: int, width: int) -> bytes:
    return encode(Image.fromarray(waves(height, width, 3)), "PNG")


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def pillow(data: bytes) -> dict[str, Any]:
    """The part of a message that has an image of Pillow's."""
    return {"type": "image_pil", "image_pil": opened(data)}


def url(text: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": text}}


CAT, DOG, OWL = file(40, 56), file(31, 90), file(44, 60)


@pytest.fixture(scope="module", params=["qwen2-vl", "internvl"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ServedVision:
    return save_served(tmp_path_factory.mktemp(request.param) / "tiny-vision", request.param)


@pytest.fixture(scope="module")
def llm(model: ServedVision) -> LLM:
    pictures = model.folder.with_name("pictures")
    pictures.mkdir()
    (pictures / "dog.png").write_bytes(DOG)
    return LLM(model.folder, allowed_local_media_path=pictures, **OPTIONS)


@pytest.fixture(scope="module")
def text_llm(text_model: Path) -> LLM:
    return LLM(text_model, load_format="dummy", **OPTIONS)


def written(model: ServedVision, *pieces: str | None) -> str:
    """The turn of a user as the template writes it; None stands for an image."""
    shown = {"qwen2-vl": "<|vision_start|><|image_pad|><|vision_end|>", "internvl": "<IMG_CONTEXT>\n"}[model.family]
    content = "".join(shown if piece is None else piece for piece in pieces)
    return f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"


def test_chats(model: ServedVision, llm: LLM) -> None:
    """From URLs and from Pillow, together with one that is text alone."""
    dog = (model.folder.with_name("pictures") / "dog.png").as_uri()
    cases: list[tuple[Messages, str, list[bytes]]] = [
        ([user(part(CAT), words("what is it?"))], written(model, None, "what is it?"), [CAT]),
        (
            [user(words("compare "), pillow(DOG), words(" and "), pillow(CAT), url(dog))],
            written(model, "compare ", None, " and ", None, None),
            [DOG, CAT, DOG],
        ),
        ([{"role": "user", "content": "hello"}], written(model, "hello"), []),
    ]
    answers = llm.chat([messages for messages, _, _ in cases], GREEDY)
    for answer, (_, text, files) in zip(answers, cases, strict=True):
        expected = model.prompt(text, files)
        assert answer.prompt == text
        assert answer.prompt_token_ids == expected
        assert answer.outputs[0].token_ids == model.greedy(expected, files, COUNT)
    again = llm.chat([user(pillow(CAT), words("what is it? And where?"))], GREEDY)[0]
    assert again.cached_tokens > 4, "in whatever way it comes"


@pytest.mark.soak
def test_an_engine_of_two_ranks(model: ServedVision) -> None:
    several = LLM(model.folder, tensor_parallel_size=2, **OPTIONS)
    answer = several.chat([user(pillow(CAT), words("what is it?"))], GREEDY)[0]
    assert answer.outputs[0].token_ids == model.greedy(answer.prompt_token_ids, [CAT], COUNT)


def test_prompts(model: ServedVision, llm: LLM) -> None:
    """In vLLM's form: one image, several, token ids, and text beside them."""
    one, two = written(model, None, "what?"), written(model, None, "or", None)
    prompts: list[Any] = [
        {"prompt": one, "multi_modal_data": {"image": opened(CAT)}},
        {"prompt": two, "multi_modal_data": {"image": [opened(DOG), opened(CAT)]}},
        {"prompt_token_ids": llm.tokenizer.encode(one), "multi_modal_data": {"image": [opened(CAT)]}},
        {"prompt": written(model, "hello")},
        written(model, "hello"),
    ]
    answers = llm.generate(prompts, GREEDY)
    for answer, text, files in zip(answers, (one, two, one), ([CAT], [DOG, CAT], [CAT]), strict=False):
        assert answer.prompt_token_ids == model.prompt(text, files)
        assert answer.outputs[0].token_ids == model.greedy(answer.prompt_token_ids, files, COUNT)
    assert [answer.prompt for answer in answers] == [one, two, None, *[written(model, "hello")] * 2]
    assert answers[3].outputs == answers[4].outputs
    assert llm.generate(prompts[0], GREEDY)[0].outputs == answers[0].outputs


def test_as_a_server(tmp_path: Path) -> None:
    model = save_served(tmp_path / "tiny-vision", "qwen2-vl")
    messages = [user(words("see "), part(OWL), part(CAT, max_pixels=512), words(": which?"))]
    with running_server(tmp_path / "server", model.folder, *FLAGS, engine="real") as server:
        fields = {"max_tokens": COUNT, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        body = server.post("/v1/chat/completions", messages=messages, **fields).json()
    (answer,) = LLM(model.folder, **OPTIONS).chat(messages, GREEDY)
    assert answer.prompt_token_ids == body["prompt_token_ids"]
    assert answer.outputs[0].token_ids == body["choices"][0]["token_ids"]
    assert answer.outputs[0].text == body["choices"][0]["message"]["content"]


async def test_where_an_event_loop_runs(model: ServedVision, llm: LLM) -> None:
    """As in a notebook."""
    (answer,) = llm.chat([user(part(CAT), words("what is it?"))], GREEDY)
    assert answer.outputs[0].token_ids == model.greedy(answer.prompt_token_ids, [CAT], COUNT)


def test_samples_and_schemas(llm: LLM) -> None:
    messages = [user(words("is it a cat? "), pillow(CAT))]
    schema = json.dumps({"enum": ["cat", "dog"]})
    params = SamplingParams(max_tokens=20, seed=5, grammar_spec=GrammarSpec("json", schema))
    (answer,) = llm.chat(messages, params, n=4)
    assert {json.loads(output.text) for output in answer.outputs} <= {"cat", "dog"}
    assert [output.finish_reason for output in answer.outputs] == ["stop"] * 4
    free = llm.chat(messages, SamplingParams(max_tokens=COUNT, seed=5, ignore_eos=True), n=4)[0].outputs
    assert len({tuple(output.token_ids) for output in free}) == 4


def test_how_large(model: ServedVision, llm: LLM) -> None:
    messages = [user(pillow(file(60, 60)))]
    whole = len(llm.chat(messages, GREEDY)[0].prompt_token_ids)
    small = len(llm.chat(messages, GREEDY, mm_processor_kwargs={"max_pixels": 256})[0].prompt_token_ids)
    prompt = {"prompt": written(model, None), "multi_modal_data": {"image": opened(file(60, 60))}}
    bounded = {**prompt, "mm_processor_kwargs": {"max_pixels": 256}}
    assert len(llm.generate(prompt, GREEDY)[0].prompt_token_ids) == whole
    assert len(llm.generate(bounded, GREEDY)[0].prompt_token_ids) == small
    always = LLM(model.folder, mm_processor_kwargs={"max_pixels": 256}, **OPTIONS)
    assert len(always.chat(messages, GREEDY)[0].prompt_token_ids) == small < whole


def test_more_pixels_than_the_engine_holds_wait(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    conversations = [[user(pillow(file(50 + number, 60)), words("what?"))] for number in range(4)]
    expected = [answer.outputs for answer in llm.chat(conversations, GREEDY)]
    images = llm._core.scheduler.images
    assert images is not None
    monkeypatch.setattr(images, "limits", dataclasses.replace(images.limits, pixel_bytes=1))
    assert [answer.outputs for answer in llm.chat(conversations, GREEDY)] == expected


def test_nothing_is_generated_beside_an_image_that_cannot_be_encoded(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the prompts before it take turns."""
    images = llm._core.scheduler.images
    assert images is not None
    sizes = ((28, 28), (28, 30), (31, 90), (31, 91), (60, 60))
    conversations = [[user(pillow(file(height, width)))] for height, width in sizes]
    tokens = [answer.prompt_token_ids.count(llm._images._tokens.image) for answer in llm.chat(conversations, GREEDY)]
    small, large = min(tokens), tokens.index(max(tokens))
    first = [each for each, count in zip(conversations, tokens, strict=True) if count == small][:2]
    bounded = dataclasses.replace(images.limits, pixel_bytes=1, max_tokens=small)
    monkeypatch.setattr(images, "limits", bounded)
    monkeypatch.setattr(llm._core, "step", lambda: pytest.fail("a step"))
    with pytest.raises(ValueError, match=f"memory is planned for images of {small}"):
        llm.chat([*first, conversations[large]], GREEDY)


BROKEN = part(CAT[: len(CAT) // 2])
CONVERSATIONS: dict[str, tuple[list[Messages], str]] = {
    "broken": ([[user(part(DOG), BROKEN)]], r"^messages\[0\]\.content\[1\]: .*truncated or broken"),
    "of several": (
        [[user(part(DOG))], [user(words("x"), BROKEN)]],
        r"^conversation 2 of 2: messages\[0\]\.content\[1\]: .*truncated or broken",
    ),
    "private": ([[user(url("http://127.0.0.1/cat.png"))]], r"^messages\[0\]\.content\[0\]: http://127\.0\.0\.1"),
    "file": ([[user(url("file:///etc/passwd"))]], r"^messages\[0\]\.content\[0\]: file:"),
    "bytes": ([[user({"type": "image_pil", "image_pil": CAT})]], r"content\[0\]\.image_pil must be .*, not bytes"),
    "role": ([[{"role": "system", "content": [part(CAT)]}]], r"^messages\[0\]\.content\[0\]: images belong to"),
    "sound": ([[user(part(CAT), {"type": "input_audio"})]], r"content\[1\]: input_audio is not supported"),
    "frames": ([[user({"type": "video", "video": ["a"]})]], r"content\[0\]: video is not supported here, only images"),
    "film": ([[user({"type": "video_url", "video_url": "a"})]], r"content\[0\]: video_url is not supported here"),
    "detail": ([[user(part(CAT, detail="huge"))]], r"content\[0\]\.image_url\.detail must be one of"),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversations_that_are_refused(llm: LLM, name: str) -> None:
    conversations, says = CONVERSATIONS[name]
    with pytest.raises(ValueError, match=says):
        llm.chat(conversations, GREEDY)


def pictured(prompt: str, *images: Any) -> dict[str, Any]:
    return {"prompt": prompt, "multi_modal_data": {"image": [*images]}}


PROMPTS: dict[str, tuple[Callable[[str], Any], str]] = {
    "fewer": (lambda image: pictured("see", opened(CAT)), "the prompt has 0 image tokens .* for 1 images"),
    "more": (lambda image: pictured(2 * image, opened(CAT)), "the prompt has 2 image tokens .* for 1 images"),
    "of several": (lambda image: ["x", {"prompt": "y", "images": []}], "^prompt 2 of 2: a prompt with 'images'"),
    "video": (lambda image: {"prompt": "x", "multi_modal_data": {"video": 1}}, "'video' is not supported; give 'im"),
    "array": (lambda image: pictured(image, waves(9, 9, 3)), "not ndarray; .*Image.fromarray"),
    "nothing": (lambda image: {"multi_modal_data": {}}, "needs one of 'prompt', a text, and 'prompt_token_ids'"),
    "both": (lambda image: {"prompt": "x", "prompt_token_ids": [5]}, "needs one of 'prompt', a text, and"),
    "sizes": (
        lambda image: ["x", {"prompt": "y", "mm_processor_kwargs": {"fps": 1}}],
        "^prompt 2 of 2: mm_processor_kwargs: fps is not supported",
    ),
    "truncated": (
        lambda image: pictured(2 * image, opened(DOG), opened(CAT[: len(CAT) // 2])),
        r"^multi_modal_data\['image'\]\[1\]: the image cannot be used",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_that_are_refused(model: ServedVision, llm: LLM, name: str) -> None:
    made, says = PROMPTS[name]
    with pytest.raises(ValueError, match=says):
        llm.generate(made(IMAGE[model.family]), GREEDY)


def test_a_model_of_text(text_llm: LLM) -> None:
    with pytest.raises(ValueError, match=r"^messages\[0\]\.content\[0\]: image_url is not supported by this model"):
        text_llm.chat([user(pillow(CAT), words("what?"))], GREEDY)
    with pytest.raises(ValueError, match="multi_modal_data: 'image' is not supported by this model"):
        text_llm.generate({"prompt": "hello", "multi_modal_data": {"image": opened(CAT)}}, GREEDY)
    with pytest.raises(ValueError, match=r"embed\(\) takes texts and token ids"):
        text_llm.embed({"prompt": "hello"})
    same = text_llm.generate([{"prompt": "hello"}, "hello"], GREEDY)
    assert same[0].outputs == same[1].outputs


def test_why_there_are_none(model: ServedVision) -> None:
    config = load_model_config(model.folder)

    def serving(sources: MediaSources | None = None, **fields: Any) -> ImageServing | NoImages:
        return offline_serving(model.folder, config, sources or MediaSources(), {}, **fields)

    found = serving(with_visual=False)
    assert isinstance(found, NoImages)
    assert "with_visual=False" in found.reason
    found = serving(MediaSources(("/a",), ("*.example",), ("minio.svc",)))
    assert isinstance(found, ImageServing)
    assert found.allowed_media_domains == ("*.example",)
    assert MediaSources.of(Path("/a"), ["*.example"], None) == MediaSources(("/a",), ("*.example",))
    assert not any(MediaSources.of("", [], None))
    with pytest.raises(ValueError, match="allowed_local_media_path"):
        serving(MediaSources(("relative",)))
    with pytest.raises(ValueError, match="min_image_pixels must not be more"):
        offline_serving(model.folder, config, MediaSources(), {"min_pixels": 9, "max_pixels": 8})
