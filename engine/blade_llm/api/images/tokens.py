"""Image tokens in prompts: the template writes one for each image, and it becomes as many as there are embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from blade_llm.api.images.serving import ImageServing
from blade_llm.spec.vision.images import ImagePixels, ImageSpan
from blade_llm.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """How a model's prompts show images."""

    image: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    """Around the tokens of an image; empty where the chat template writes them."""
    reserved: tuple[str, ...]
    """Tokens as text that stand for images and videos: no text of a request may have them."""

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
        return cls(serving.image_token, around[0], around[1], tuple(text for text in (image, video) if text))

    def count_in(self, token_ids: Sequence[int]) -> int:
        """Images that the template has written."""
        return sum(token_id == self.image for token_id in token_ids)

    def found_in(self, values: Iterable[Any]) -> str | None:
        """The first of the :attr:`reserved` tokens that a text in ``values`` has; None: there is none."""
        text = "\n".join(piece for value in values for piece in _texts(value))
        return next((token for token in self.reserved if token in text), None)

    def expand(
        self, token_ids: Sequence[int], images: Sequence[ImagePixels], count: Callable[[tuple[int, int, int]], int]
    ) -> tuple[list[int], list[ImageSpan]]:
        """The prompt with ``count(grid)`` image tokens in place of the one of each image, and where these are.

        ``token_ids`` has as many image tokens as there are ``images``.
        """
        expanded: list[int] = []
        spans: list[ImageSpan] = []
        start = 0
        for image in images:
            place = token_ids.index(self.image, start)
            expanded += token_ids[start:place]
            expanded += self.before
            spans.append(ImageSpan(len(expanded), count(image.grid), image.digest, image.grid))
            expanded += [self.image] * spans[-1].count
            expanded += self.after
            start = place + 1
        expanded += token_ids[start:]
        return expanded, spans


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
