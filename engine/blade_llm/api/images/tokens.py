"""Image tokens in prompts: the template writes one for each image, and it becomes as many as there are embeddings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from blade_llm.api.images.serving import ImageServing
from blade_llm.multimodal.request_videos import VideoPixels
from blade_llm.spec.vision.images import ImagePixels, ImageSpan
from blade_llm.text.tokenizer import Tokenizer

_AROUND_PATCH: Final = ("<|vision_start|>", "<|vision_end|>")


@dataclass(frozen=True, slots=True)
class TimedPatches:
    """What stands around each patch in time of a video, behind when it is."""

    begin: int
    end: int
    encode: Callable[[str], list[int]]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TimedPatches:
        """Raises ``ValueError`` where the tokenizer does not have the tokens."""
        begin, end = (tokenizer.token_id(text) for text in _AROUND_PATCH)
        if begin is None or end is None:
            raise ValueError(f"{tokenizer.folder}: there is no token {_AROUND_PATCH[begin is not None]!r}")
        return cls(begin, end, functools.partial(tokenizer.encode, add_special_tokens=False))


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """How a model's prompts show images and videos."""

    image: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    """Around the tokens of an image; empty where the chat template writes them."""
    reserved: tuple[str, ...]
    """Tokens as text that stand for images and videos: no text of a request may have them."""
    video: int | None = None
    """None: there are no videos."""
    timed: TimedPatches | None = None
    """Where the prompt says the times of videos."""

    @classmethod
    def of(cls, serving: ImageServing, tokenizer: Tokenizer) -> ImageTokens:
        """Raises ``ValueError`` where the tokenizer does not have the tokens."""
        image = tokenizer.token(serving.image_token)
        if image is None or tokenizer.added_ids.get(image) != serving.image_token:
            raise ValueError(f"{tokenizer.folder}: token {serving.image_token}, the image token, is no added token")
        video = None if serving.video_token is None else tokenizer.token(serving.video_token)
        around = []
        for text in serving.processor.surrounding:
            found = tokenizer.token_id(text) if text else None
            if text and found is None:
                raise ValueError(f"{tokenizer.folder}: there is no token {text!r}, which belongs around an image's")
            around.append(() if found is None else (found,))
        reserved = tuple(text for text in (image, video) if text)
        if serving.video is None:
            return cls(serving.image_token, around[0], around[1], reserved)
        if video is None or tokenizer.added_ids.get(video) != serving.video_token:
            raise ValueError(f"{tokenizer.folder}: token {serving.video_token}, the video token, is no added token")
        timed = TimedPatches.of(tokenizer) if serving.video.timestamps else None
        return cls(serving.image_token, around[0], around[1], reserved, serving.video_token, timed)

    def count_in(self, token_ids: Sequence[int]) -> int:
        """Images that the template has written."""
        return sum(token_id == self.image for token_id in token_ids)

    def videos_in(self, token_ids: Sequence[int]) -> int:
        """Videos that the template has written."""
        return 0 if self.video is None else sum(token_id == self.video for token_id in token_ids)

    def found_in(self, values: Iterable[Any]) -> str | None:
        """The first of the :attr:`reserved` tokens that a text in ``values`` has; None: there is none."""
        text = "\n".join(piece for value in values for piece in _texts(value))
        return next((token for token in self.reserved if token in text), None)

    def expand(
        self,
        token_ids: Sequence[int],
        images: Sequence[ImagePixels],
        count: Callable[[tuple[int, int, int]], int],
        videos: Sequence[VideoPixels] = (),
    ) -> tuple[list[int], list[ImageSpan]]:
        """The prompt with ``count(grid)`` image tokens in place of the one of each image, video tokens in place of that
        of each video, and where these are.

        A video whose times the prompt says becomes ``<0.5 seconds>`` and a vision start, tokens and a vision end for
        each of its patches in time, within what the template has written around it (as transformers from 5.10 on;
        earlier ones left that out).

        ``token_ids`` has as many image tokens as there are ``images``, and as many video tokens as ``videos``.
        """
        expanded: list[int] = []
        spans: list[ImageSpan] = []
        next_image, next_video = iter(images), iter(videos)
        stand = {self.image} if self.video is None or not videos else {self.image, self.video}
        start = 0
        for place in [place for place, token_id in enumerate(token_ids) if token_id in stand]:
            expanded += token_ids[start:place]
            start = place + 1
            if token_ids[place] == self.image:
                expanded += self.before
                self._add(expanded, spans, self.image, next(next_image), count)
                expanded += self.after
            else:
                self._add_video(expanded, spans, next(next_video), count)
        expanded += token_ids[start:]
        return expanded, spans

    def _add_video(
        self,
        expanded: list[int],
        spans: list[ImageSpan],
        video: VideoPixels,
        count: Callable[[tuple[int, int, int]], int],
    ) -> None:
        assert self.video is not None
        if self.timed is None:
            self._add(expanded, spans, self.video, video.images[0], count, video.interval)
            return
        for image, seconds in zip(video.images, video.seconds, strict=True):
            expanded += self.timed.encode(f"<{seconds:.1f} seconds>")
            expanded.append(self.timed.begin)
            self._add(expanded, spans, self.video, image, count)
            expanded.append(self.timed.end)

    @staticmethod
    def _add(
        expanded: list[int],
        spans: list[ImageSpan],
        token: int,
        image: ImagePixels,
        count: Callable[[tuple[int, int, int]], int],
        interval: float = 1.0,
    ) -> None:
        spans.append(ImageSpan(len(expanded), count(image.grid), image.digest, image.grid, interval))
        expanded += [token] * spans[-1].count


def _texts(value: Any) -> Iterator[str]:
    """All strings in a JSON value, in order, keys included."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting += [piece for pair in reversed(value.items()) for piece in reversed(pair)]
        elif isinstance(value, list | tuple):
            waiting += reversed(value)
