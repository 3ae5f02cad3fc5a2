"""How a prompt's outputs are found: sampled, sampled and the best of them kept, or searched for with beams.

``best_of`` alone keeps OpenAI's meaning (so many are sampled, the ``n`` best returned). BladeLLM's server took
``best_of`` above 1 for a beam search; here a beam search is requested by ``use_beam_search`` or ``beam_width``, and
``best_of`` is then its width.
"""

from __future__ import annotations

from dataclasses import dataclass

from blade_llm.api.common.errors import bad_request
from blade_llm.api.generation.requests import GenerationFields


@dataclass(frozen=True, slots=True)
class Search:
    """What the engine generates for each prompt, and how much of it is returned."""

    n: int = 1
    """Outputs for a prompt."""
    samples: int = 1
    """Engine requests for it; beyond ``n`` only the best are returned."""
    beam_width: int = 0
    """0: tokens are sampled."""
    width_field: str = "beam_width"
    """The field that gives it."""
    greedy: bool = False
    """Neither temperature nor filters: a beam search, one of a single beam included."""

    @property
    def field_names(self) -> dict[str, str]:
        """The fields that give what the engine calls ``beam_width`` and ``n``."""
        return {"beam_width": self.width_field, "n": "best_of" if self.ranked else "n"}

    @property
    def ranked(self) -> bool:
        return self.samples > self.n


def search_of(fields: GenerationFields) -> Search:
    """Raises :class:`ApiError` 400 for fields that contradict each other."""
    if fields.stream_options is not None and not fields.stream:
        raise bad_request("stream_options needs stream: true", "stream_options")
    best_of = fields.best_of or None  # OpenAI's smallest is 0
    if best_of is not None and best_of < fields.n:
        raise bad_request(f"best_of must be at least n, which is {fields.n}", "best_of")
    if fields.use_beam_search or (fields.beam_width is not None and fields.use_beam_search is None):
        return _beams(fields)
    for name, neutral in (("beam_width", None), ("length_penalty", 1.0), ("early_stopping", False)):
        if getattr(fields, name) != neutral:
            raise bad_request(f"{name} needs use_beam_search: true", name)
    if best_of is None or best_of == fields.n:
        return Search(fields.n, fields.n)
    if fields.stream:
        raise bad_request("best_of above n cannot be streamed: the best is known at the end", "best_of")
    return Search(fields.n, best_of)


def _beams(fields: GenerationFields) -> Search:
    field = next(name for name in ("beam_width", "best_of", "n") if getattr(fields, name))
    width: int = getattr(fields, field)
    if fields.best_of not in (None, 0, width):
        raise bad_request(f"best_of and beam_width ({width}) both give the beam search's width; send one", "best_of")
    if width < fields.n:
        raise bad_request(f"n must be at most the beam search's width, which is {width}", "n")
    if fields.temperature not in (None, 0.0, 1.0):
        raise bad_request("a beam search draws nothing: leave temperature out", "temperature")
    for name, off in (("top_p", (None, 1.0)), ("top_k", (None, 0, -1)), ("min_p", (0.0,))):
        if getattr(fields, name) not in off:
            raise bad_request(f"a beam search draws nothing: leave {name} out", name)
    return Search(fields.n, fields.n, beam_width=width if width > 1 else 0, width_field=field, greedy=True)
