"""Decides which images are encoded when, and whose embeddings stay.

Images of admitted requests are encoded in the order of the requests, each once however many wait for it, and only what
is not computed yet: a prompt whose images are all in the prefix cache needs no encoder. A run of the tower takes one
image, or several small ones, and is cut into pieces, one or more a step.

A request holds its images from the first that is still to be computed up to the first that is not encoded: it can
compute all these without anything else, and then lets go of them. What is held so never keeps the encoder from
getting on for ever, however little fits into the cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from blade_llm.cache.encoder_cache import EncoderCache
from blade_llm.scheduling.budget.encoder import EncoderBudget
from blade_llm.scheduling.images.limits import MAX_RUN_IMAGES, EncoderLimits
from blade_llm.scheduling.output import RequestError
from blade_llm.scheduling.plan import EncoderChunk
from blade_llm.scheduling.queue import RequestQueue
from blade_llm.scheduling.request import NO_BARRIER, Request, RequestRefusedError
from blade_llm.scheduling.step import Step
from blade_llm.spec.vision.images import ImagePixels, ImageSpan
from blade_protocol.state import ImageCounts


@dataclass(slots=True)
class _Remaining:
    """The images of a running request that are still to be computed."""

    images: deque[ImageSpan]
    held: int = 0
    """So many of them, from the first on, are encoded, and held."""


@dataclass(slots=True)
class _Run:
    """What the tower makes embeddings of just now."""

    digests: tuple[bytes, ...]
    left: int
    """Row-layers that no step has yet."""


@dataclass(slots=True)
class _Stored:
    pixels: ImagePixels
    requests: int = 0


@dataclass(slots=True)
class EncoderCounts:
    """What the encoder has done since the start."""

    images: int = 0
    """Encoded."""
    hits: int = 0
    """Images that an admitted request found encoded, or on their way."""

    @property
    def published(self) -> ImageCounts:
        """For the engine's state."""
        return ImageCounts(encoded=self.images, hits=self.hits)


class ImageEncoding:
    """The images of all live requests.

    Attributes:
        cache: which embeddings are on the device.
        budget: how much a step may encode.
    """

    def __init__(self, limits: EncoderLimits, max_num_seqs: int, budget: EncoderBudget | None = None) -> None:
        self.limits = limits
        self.cache = EncoderCache(limits.cache_bytes)
        self.budget = budget or EncoderBudget()
        self.counts = EncoderCounts()
        self.pixel_bytes = 0
        """Of all live requests."""
        self._most_blocked = max(2, max_num_seqs // 4)
        self._pixels: dict[bytes, _Stored] = {}
        self._queue = RequestQueue()
        """Running requests with images to compute."""
        self._remaining: dict[Request, _Remaining] = {}
        """Of the same requests."""
        self._run: _Run | None = None
        self._encoded_last = False
        """The last step that could have a piece or prefill had a piece."""

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    def check_room(self, pixels: Mapping[bytes, ImagePixels], outside: int = 0) -> None:
        """Refuse a request whose pixels are too many beside those of others. ``outside``: bytes of requests that are
        still to be added.

        Raises:
            RequestRefusedError: ``overloaded``.
        """
        held = self.pixel_bytes + outside
        new = sum(len(each.pixels) for digest, each in pixels.items() if digest not in self._pixels)
        if held and held + new > self.limits.pixel_bytes:
            message = f"busy: images of {held} bytes are waiting, no more may; try again in a moment"
            raise RequestRefusedError(RequestError(kind="overloaded", message=message))

    def add(self, request: Request) -> None:
        """Keep the pixels of a new request: those of equal images once."""
        for digest in {image.digest for image in request.images}:
            stored = self._pixels.get(digest)
            if stored is None:
                stored = self._pixels[digest] = _Stored(request.pixels[digest])
                self.pixel_bytes += len(stored.pixels.pixels)
            stored.requests += 1
        request.pixels = {}

    def admitted(self, request: Request) -> None:
        """A request got its slot, and has ``num_computed`` positions."""
        left = deque(image for image in request.images if image.end > request.num_computed)
        self.counts.hits += sum(image.digest in self.cache for image in left)
        if left:
            self._queue.add(request)
            self._remaining[request] = _Remaining(left)
            self._hold(request)

    def computed(self, request: Request) -> None:
        """A step computes positions of a request up to ``num_computed``."""
        remaining = self._remaining.get(request)
        if remaining is None:
            return
        images = remaining.images
        while images and images[0].start + images[0].count <= request.num_computed:
            assert remaining.held, "an image was computed before it was encoded"
            self.cache.release(images.popleft().digest)
            remaining.held -= 1
        if not images:
            self._forget(request)

    def left(self, request: Request) -> None:
        """A request lost its slot, or ends."""
        remaining = self._remaining.get(request)
        if remaining is not None:
            for image in islice(remaining.images, remaining.held):
                self.cache.release(image.digest)
            self._forget(request)

    def finished(self, request: Request) -> None:
        """A request has ended, whatever its phase was. A run whose images no request has any more ends with it."""
        self.left(request)
        for digest in {image.digest for image in request.images}:
            stored = self._pixels[digest]
            stored.requests -= 1
            if not stored.requests:
                self.pixel_bytes -= len(stored.pixels.pixels)
                del self._pixels[digest]
        if self._run is not None and not any(digest in self._pixels for digest in self._run.digests):
            self.cache.cancel(self._run.digests)
            self._run = None

    @property
    def crowded(self) -> bool:
        """Whether so many requests wait for the encoder that no more should take slots and blocks for that."""
        return sum(request.awaits_image for request in self._queue) >= self._most_blocked

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def active(self) -> bool:
        """Whether any running request has images to compute, or the runner has not yet heard of some that left."""
        return bool(self._remaining or self.cache.freed) or self._run is not None

    def schedule(self, step: Step, decode_seconds: float | None, *, prefill_waits: bool) -> bool:
        """Add a piece of the encoder's work to ``step``; whether anything was added.

        ``prefill_waits``: then steps take turns, and this may be one for prefill. ``decode_seconds``: of a step of
        decodes alone.
        """
        blocked = any(request.awaits_image for request in self._queue)
        if prefill_waits and self._encoded_last:
            self._encoded_last = False
        elif self._run is not None or blocked:
            self._add_pieces(step, self.budget.allowance(step.num_decodes, decode_seconds))
            self._encoded_last = bool(step.encoder)
        step.freed_images += self.cache.take_freed()
        return bool(step.encoder)

    def _add_pieces(self, step: Step, row_layers: int) -> None:
        ended = list[_Run]()
        while row_layers > 0 and (self._run is not None or self._begin(step)):
            assert self._run is not None
            run, count = self._run, min(row_layers, self._run.left)
            step.encoder.append(EncoderChunk(run.digests, count))
            run.left -= count
            row_layers -= count
            if not run.left:
                self._run = None
                ended.append(run)
        for run in ended:  # only now: the next run must not take the room of images that this very step encodes
            self._end(run)

    def observe(self, step: Step, seconds: float, decode_seconds: float | None) -> None:
        """A step with pieces took ``seconds``."""
        row_layers = sum(chunk.row_layers for chunk in step.encoder)
        self.budget.observe(step.num_decodes, row_layers, seconds, decode_seconds)

    def _begin(self, step: Step) -> bool:
        """Begin a run with the first images that are not encoded; whether there are any, and room for them."""
        spec, most = self.limits.spec, self.budget.batch()
        work, tokens, chosen = 0, 0, list[bytes]()
        for image in self._missing():
            more = spec.work(image.grid)
            tokens += image.count
            if chosen and (work + more > most or tokens > self.limits.max_tokens or len(chosen) == MAX_RUN_IMAGES):
                break
            if not self.cache.reserve(image.digest, self.limits.nbytes(image)):
                break
            chosen.append(image.digest)
            step.new_images.append(self._pixels[image.digest].pixels)
            work += more
        if chosen:
            self._run = _Run(tuple(chosen), work)
        return bool(chosen)

    def _missing(self) -> Iterable[ImageSpan]:
        """The images that are neither encoded nor on their way, in the order in which they are needed."""
        for request in self._queue:
            remaining = self._remaining[request]
            for image in islice(remaining.images, remaining.held, None):
                if image.digest not in self.cache:
                    yield image

    def _end(self, run: _Run) -> None:
        """The step that is scheduled has the last piece of a run."""
        self.counts.images += len(run.digests)
        self.cache.finish(run.digests)
        for request in self._queue:
            self._hold(request)

    def _hold(self, request: Request) -> None:
        """Hold the images that have become ready, up to the first that is not."""
        remaining = self._remaining[request]
        images = remaining.images
        while remaining.held < len(images) and self.cache.is_ready(images[remaining.held].digest):
            self.cache.hold(images[remaining.held].digest)
            remaining.held += 1
        request.image_barrier = images[remaining.held].start if remaining.held < len(images) else NO_BARRIER

    def _forget(self, request: Request) -> None:
        self._queue.remove(request)
        del self._remaining[request]
        request.image_barrier = NO_BARRIER
