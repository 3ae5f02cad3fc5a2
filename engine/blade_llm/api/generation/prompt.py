"""One prompt of a request, ready for the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from blade_llm.sampling.parameters import SamplingParams
from blade_llm.spec.vision.images import ImagePixels, ImageSpan
from blade_llm.text.output_parser import OutputParsing


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt's tokens and how to go on from them."""

    token_ids: list[int]
    sampling: SamplingParams
    only: bool = False
    """Return the prompt itself; see :class:`PromptOnlyChoice`."""
    parsing: OutputParsing | None = None
    """How its outputs are parsed; None: they are all content."""
    text: str = ""
    """The rendered conversation."""
    field_names: Mapping[str, str] = field(default_factory=dict)
    """Sampling parameter of the engine → the request's field that sets it, where the names differ."""
    images: list[ImageSpan] = field(default_factory=list)
    """Where the prompt has images."""
    pixels: list[ImagePixels] = field(default_factory=list)
    """Of each of ``images``, those of equal ones once; emptied when the engine has them."""
