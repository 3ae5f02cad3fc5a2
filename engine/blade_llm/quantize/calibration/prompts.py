"""Texts as token ids. One with images is a user's message: it is written by the model's chat template, and its images
are read as a server reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from blade_llm.api.images.serving import ImageServing
from blade_llm.models.config import ModelConfig
from blade_llm.models.errors import ModelFilesError
from blade_llm.offline_images import MediaSources, OfflineImages, TokenPrompt, WrittenPrompt, offline_serving
from blade_llm.quantize.calibration.texts import CalibrationText, IllustratedText
from blade_llm.text.chat_template import ChatTemplate, load_chat_template
from blade_llm.text.errors import ChatTemplateError
from blade_llm.text.tokenizer import Tokenizer

MOST_PIXELS: Final = 1280 * 28 * 28
"""Larger images are made smaller: 1,280 tokens of Qwen2-VL, the upper end of the range that its model card advises."""


def encode_texts(folder: Path, config: ModelConfig, texts: Sequence[CalibrationText]) -> list[TokenPrompt]:
    """Token ids of each, and images.

    Raises :class:`ModelFilesError` for images that cannot be had or used, by their places,
    :class:`~blade_llm.text.errors.TokenizerFilesError`, :class:`~blade_llm.text.errors.UnreadableTextError`.
    """
    tokenizer = Tokenizer(folder)
    illustrated = [text for text in texts if isinstance(text, IllustratedText)]
    if not illustrated:
        return [TokenPrompt(text, tokenizer.encode(text)) for text in texts if isinstance(text, str)]
    where = illustrated[0].where
    template = load_chat_template(tokenizer)
    if template is None:
        raise ModelFilesError(f"{where}: texts with images are written by a chat template, and {folder} has none")
    sources = MediaSources.of(sorted({text.folder for text in illustrated}), None, None)
    try:
        serving = offline_serving(folder, config, sources, {})
        images = OfflineImages(serving, tokenizer)
        most = min(MOST_PIXELS, serving.processor.own_bounds.max_pixels) if isinstance(serving, ImageServing) else 0
        return images.inserted([_written(text, tokenizer, template, images, most) for text in texts])
    except ChatTemplateError as error:
        raise ModelFilesError(f"{where}: {error}") from None
    except ValueError as error:
        raise error if isinstance(error, ModelFilesError) else ModelFilesError(str(error)) from None


def _written(
    text: CalibrationText, tokenizer: Tokenizer, template: ChatTemplate, images: OfflineImages, most_pixels: int
) -> WrittenPrompt:
    if isinstance(text, str):
        return WrittenPrompt(text, tokenizer.encode(text))
    where = f"{text.where}: "
    content = [
        {"type": "text", "text": value} if kind == "text" else {"type": "image_url", "image_url": {"url": value}}
        for kind, value in text.parts
    ]
    messages, pictures = images.of_conversation(
        [{"role": "user", "content": content}], {"max_pixels": most_pixels} if most_pixels else {}, where
    )
    rendered = template.render(messages)
    return WrittenPrompt(rendered, tokenizer.encode(rendered, add_special_tokens=False), pictures, where)
