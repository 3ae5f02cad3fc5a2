"""How a server takes images, by its flags and its model's files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from blade_llm.api.images.serving import ImageServing, NoImages
from blade_llm.api.images.tokens import ImageTokens
from blade_llm.cli.images.flags import LIMITS, SOURCES
from blade_llm.models.config import ModelConfig
from blade_llm.multimodal.errors import ProcessorFilesError
from blade_llm.multimodal.options import ImageOptions
from blade_llm.multimodal.processors.reading import read_processor
from blade_llm.multimodal.processors.reading_videos import read_video
from blade_llm.text.tokenizer import Tokenizer

_log: Final = logging.getLogger(__name__)
_OFF: Final = "is refused: this server reads text alone (--with_visual false); send text"
_FILES: Final = "is refused: this server cannot read what its model's files say of images; its log says more"


def image_serving(
    flags: Mapping[str, Any], folder: Path, config: ModelConfig, tokenizer: Tokenizer
) -> ImageServing | NoImages:
    """How requests may bring images, or why not. A model whose files lack what images need is served for text, with a
    warning.

    Raises ``ValueError`` for flags that contradict each other.
    """
    options = image_options(flags)
    sources: dict[str, Any] = {flag.name: tuple(filter(None, flags[flag.name] or ())) for flag in SOURCES}
    if any(sources.values()):
        from blade_llm.multimodal.fetching import FetchOptions  # the HTTP stack, which takes 0.8 s

        FetchOptions(**sources)
    if config.vision is None:
        return NoImages()
    if not flags["with_visual"]:
        return NoImages(reason=_OFF)
    try:
        processor = read_processor(folder)
        if processor is None:
            return NoImages()
        vision = config.vision
        serving = ImageServing(
            processor=processor,
            image_token=vision.image_token,
            video_token=vision.video_token,
            options=options,
            **sources,
        )
        return _with_videos(serving, folder, tokenizer)
    except (ProcessorFilesError, ValueError) as error:
        _log.warning("images are refused: %s", error)
        return NoImages(reason=_FILES)


def _with_videos(serving: ImageServing, folder: Path, tokenizer: Tokenizer) -> ImageServing:
    """``serving`` with videos; without, and with a warning, where the model's files or the tokenizer lack what only
    they need. Raises ``ValueError`` where the tokenizer lacks what images need."""
    ImageTokens.of(serving, tokenizer)
    try:
        with_videos = msgspec.structs.replace(serving, video=read_video(folder, serving.processor))
        ImageTokens.of(with_videos, tokenizer)
    except (ProcessorFilesError, ValueError) as error:
        _log.warning("videos are refused: %s", error)
        return serving
    return with_videos


def image_options(flags: Mapping[str, Any]) -> ImageOptions:
    """The limits. Raises ``ValueError`` for those that contradict each other."""
    given = {flag.name: flags[flag.name] for flag in LIMITS}
    waiting = max(ImageOptions.max_waiting_bytes, given["max_image_bytes"])
    return ImageOptions(**given, max_waiting_bytes=waiting)
