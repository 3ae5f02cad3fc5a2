"""Large bodies, abridged: the same JSON with the inside of long texts, files and lists of numbers left out.

A parser holds the event loop until it is through, and 16 MiB can hold eight million elements. So a large body is not
parsed whole: it is walked in steps of bounded work, between which other requests get their turns, and what remains is
small enough for a parser. What the router needs of it (fields, the beginning of the prompt, how large the rest is) is
all there. What was left out is the engine's to judge; the body itself is forwarded as it came.
"""

import codecs
import re
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Generator
from hashlib import blake2b

from blade_router.http.errors import Refused

PARSED_WHOLE = 1 << 20
"""Bytes of the largest body that a parser may have whole."""
STEP = 128 << 10
"""Bytes walked in one go: a millisecond or two."""
MAX_TEXT = 1 << 20
"""Bytes kept of all long texts and lists of numbers together, the first ones: about 256k tokens."""
MAX_STRUCTURE = 2 << 20
"""Bytes of everything else: brackets, names, short texts and numbers. More is no request that an engine could serve."""
LONG = 64
"""Bytes from which on a text counts as long."""
MAX_NAME = 64 << 10
"""Bytes of a model's or user's name, or a salt: up to there it is kept."""
MAX_CUTS = 1 << 18
"""Omissions, beyond which long texts count as structure."""
MAX_ABRIDGED = MAX_TEXT + MAX_STRUCTURE
"""Bytes of JSON that are left of a body at most."""
_LONG_NUMBERS = 256
_FILE_HEAD = 32
"""Bytes kept of a file: its media type."""
_SAMPLE = 16 << 10
"""Bytes of the start and the end of a file that enter its digest themselves; of the rest a checksum does."""
_SUMMED = 1 << 20
"""Bytes of a file that are summed up in one go: half a millisecond."""
_FILE_FROM = 4 * LONG
"""Bytes from which on a text may be a file."""
_PROBED = 4096
"""Bytes at the start and the end of what may be a file that are looked at."""

_SHORT = re.compile(
    rb"(?:"
    rb'[^"\d]++'
    rb"|\d[\deE+\-.,\s]{0,%d}+(?![\deE+\-.,\s])"
    rb'|"[^"\\]{0,%d}+(?:\\.[^"\\]{0,%d}+){0,16}+"'
    rb")*+" % (_LONG_NUMBERS, LONG, LONG),
    re.DOTALL,
)
"""All that is short: it is kept, and skipped at the speed of C."""
_NUMBERS = re.compile(rb"[\deE+\-.,\s]*+")
_IN_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_WHOLE_CHARACTERS = re.compile(
    rb'[^"\\]*+(?:'
    rb"\\(?:[^u]|u(?:[dD][89abAB][\da-fA-F]{2}\\u[\da-fA-F]{4}|(?![dD][89abAB])[\da-fA-F]{4}))"
    rb'[^"\\]*+)*+',
    re.DOTALL,
)
"""Ends neither within an escape nor between the two of a pair."""
FILE_FIELD = rb'"(?:url|image_url|video_url|file_data)"\s{0,8}:\s{0,8}"'
"""Matches the start of a field that may hold a file; within a text, which may say the same, the quotes are escaped."""
FILE_URL = rb"data:[\w.+/;=\\-]{0,200};base64,"
"""Matches what stands there before the file."""
BARE_FILE_FIELD = rb'"data"\s{0,8}:\s{0,8}"'
"""Matches the start of a field that may hold a file which is no URL, as in ``/v1/messages``."""
BASE64 = rb"[A-Za-z0-9+/=_\\-]"
"""Matches a character of a file."""
FRAMES_FIELD = rb'"video"\s{0,8}:\s{0,8}\[\s{0,64}'
"""Matches the start of a list of a video's frames, before the quote of the first."""
_FILE = re.compile(FILE_FIELD + rb"(" + FILE_URL + rb")")
_FILE_URL = re.compile(FILE_URL)
_FIRST_FRAME = re.compile(FRAMES_FIELD + rb'(?:"[^"\\]{0,%d}"\s{0,64},\s{0,64}){0,8}"\Z' % LONG)
"""Matches what stands before the first long frame of a video."""
_BETWEEN_FRAMES = re.compile(rb'\s{0,64},\s{0,64}(?:"[^"\\]{0,%d}"\s{0,64},\s{0,64})*+"' % LONG)
"""Matches a comma, and short ones."""
_BARE_FILE = re.compile(BARE_FILE_FIELD + rb"\Z")
_BASE64 = re.compile(BASE64 + rb"*+")
_NAME = re.compile(rb'"(?:model|user|cache_salt)"\s{0,8}:\s{0,8}"\Z')
_FILE_NAME_BYTES = 40
_FRAMES_NAME_BYTES = 512
CUT = rb"\u0000"
"""Stands in the abridged JSON for what was left out of a text; followed by a digest where that is a file."""


class Abridged:
    """A body as :func:`abridge` has left it."""

    __slots__ = ("_ends", "_omitted", "file_bytes", "files", "json", "longest", "omitted_bytes", "omitted_numbers")

    def __init__(self) -> None:
        self.json: bytes = b""
        self.omitted_bytes = 0
        """Of text and numbers."""
        self.omitted_numbers = 0
        self.file_bytes = 0
        """Size of pictures and other files."""
        self.files = 0
        """How many there are of them."""
        self.longest = 0
        """Bytes of the longest text or file."""
        self._ends = array("q")
        """Positions in ``json`` behind each omission."""
        self._omitted = array("q")
        """Bytes by which the body is longer than ``json`` up to there."""

    def position(self, at: int) -> int:
        """The position in the body of what is at ``at`` in ``json``, outside of what was cut."""
        before = bisect_right(self._ends, at) - 1
        return at + self._omitted[before] if before >= 0 else at

    def replace_json(self, json: bytes) -> None:
        """It was changed, and the body likewise; positions are not known from now on."""
        self.json = json
        self._ends = array("q")
        self._omitted = array("q")

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return len(self.json) + self._ends.itemsize * (len(self._ends) + len(self._omitted))

    @property
    def omissions(self) -> int:
        return len(self._ends)

    def add_omission(self, end: int, omitted: int) -> None:
        self._ends.append(end)
        self._omitted.append(omitted)


def abridge(body: bytes) -> Generator[None, None, Abridged]:
    """Abridge a body; yields between steps, and returns the result.

    Memory: ``MAX_TEXT + MAX_STRUCTURE``, and 16 bytes an omission.

    Raises:
        Refused: 400, it is not UTF-8, or a text has no end; 413, there is too much that cannot be left out.
    """
    if not body.isascii():
        yield from _check_utf8(body)
    found = Abridged()
    out = bytearray()
    size = len(body)
    view = memoryview(body)
    position = copied = 0  # walked so far; written to ``out`` so far, or cut
    frame = -1  # behind the last frame of a video
    kept = 0
    next_yield = STEP
    while position < size:
        start = position = _end(_SHORT, body, position, position + STEP)
        cut = end = start
        mark = CUT
        first = body[position] if position < size else 0
        if first == 0x22:  # a long text, or one that goes on behind this step
            start += 1
            end = yield from _end_of_text(body, start)
            position = end + 1
            if end - start > found.longest:
                found.longest = end - start
            framed = _is_frame(body, frame, start)
            frame = position if framed else -1  # so that nothing is matched twice behind it
            if _is_file(body, start, end, framed):
                cut = _before_character(body, start, start + _FILE_HEAD)
                digest = yield from _digest(view[start:end])
                mark = CUT + digest
                found.file_bytes += end - cut
                found.files += 1
            elif end - start <= LONG or found.omissions >= MAX_CUTS or _is_name(body, start, end):
                cut = end
            else:
                cut = min(end, start + MAX_TEXT - kept)
                if cut < end:
                    cut = _before_character(body, start, cut)
                    found.omitted_bytes += end - cut
                    kept = MAX_TEXT
                else:
                    kept += end - start
        elif 0x30 <= first <= 0x39:  # many numbers, or some that go on behind this step
            position = yield from _end_of_numbers(body, position)
            cut, end = _inner_numbers(body, start, position, MAX_TEXT - kept)
            if cut < end:
                kept = min(MAX_TEXT, kept + cut - start)
                found.omitted_bytes += end - cut
                found.omitted_numbers += body.count(b",", cut, end)
                mark = b'"%b"' % CUT
        if cut < end:
            out += view[copied:cut]
            out += mark
            copied = end
            found.add_omission(len(out), end - len(out))
        if len(out) + position - copied > MAX_STRUCTURE + kept:
            raise _too_complex()
        if position >= next_yield:
            next_yield = position + STEP
            yield
    out += view[copied:]
    found.json = bytes(out)
    return found


def abridge_at_once(body: bytes) -> Abridged:
    """The same in one go, for a small body, or where nothing else waits.

    Raises:
        Refused: as for ``abridge``.
    """
    steps = abridge(body)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Abridged = end.value
            return found


def _end(pattern: re.Pattern[bytes], body: bytes, start: int, limit: int) -> int:
    """Where the match of a pattern ends that always has one."""
    match = pattern.match(body, start, limit)
    return match.end() if match is not None else start


def _check_utf8(body: bytes) -> Generator[None, None, None]:
    """Raises:
    Refused: 400, it is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(body)
    for start in range(0, len(body), STEP):
        try:
            decoder.decode(view[start : start + STEP], final=start + STEP >= len(body))
        except UnicodeDecodeError as error:
            raise not_utf8(start + error.start) from None
        yield


def not_utf8(position: int) -> Refused:
    message = f"the request body is not valid JSON: byte {position} is not UTF-8"
    return Refused(400, message, code="invalid_json")


def _end_of_text(body: bytes, position: int) -> Generator[None, None, int]:
    """The position of the quote that ends the text whose inside begins at ``position``.

    Raises:
        Refused: 400, it has no end.
    """
    quote = body.find(b'"', position)
    if quote >= 0 and body.find(b"\\", position, quote) < 0:
        return quote
    size = len(body)
    while True:
        position = _end(_IN_TEXT, body, position, position + STEP)
        if position >= size - 1 and body[position : position + 1] != b'"':
            raise Refused(400, "the request body is not valid JSON: a text has no end", code="invalid_json")
        if body[position] == 0x22:
            return position
        yield


def _before_character(body: bytes, start: int, limit: int) -> int:
    """The last position up to ``limit`` that is not within a character or an escape of the text from ``start`` on."""
    cut = _end(_WHOLE_CHARACTERS, body, start, limit)
    while cut > start and body[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut


def _end_of_numbers(body: bytes, position: int) -> Generator[None, None, int]:
    """The position behind the numbers, commas and spaces that begin at ``position``."""
    while True:
        limit = position + STEP
        position = _end(_NUMBERS, body, position, limit)
        if position < limit:
            return position
        yield


def _inner_numbers(body: bytes, start: int, end: int, room: int) -> tuple[int, int]:
    """The part of a list of numbers that is left out: ``room`` bytes are kept, at least its first number, and its last
    one, so that it stays a list whatever surrounds it. Empty where it is short or has no three numbers."""
    last = body.rfind(b",", start, end)
    if end - start <= _LONG_NUMBERS or last < 0:
        return end, end
    cut = body.rfind(b",", start, min(start + room, last)) + 1 or body.find(b",", start, last) + 1
    return (cut, last) if cut else (end, end)


def _is_frame(body: bytes, before: int, start: int) -> bool:
    """The text whose inside begins at ``start`` is in the list of a video's frames: the first one, or the next behind
    the one that ended at ``before`` (-1: there is none)."""
    if _FIRST_FRAME.search(body, max(0, start - _FRAMES_NAME_BYTES), start) is not None:
        return True
    return before >= 0 and _BETWEEN_FRAMES.fullmatch(body, before, start) is not None


def _is_file(body: bytes, start: int, end: int, framed: bool) -> bool:
    """The text from ``start`` to ``end`` is the content of a file. ``framed``: it is in the list of a video's
    frames."""
    if end - start <= _FILE_FROM:
        return False
    before = max(0, start - _FILE_NAME_BYTES)
    if framed:
        if _FILE_URL.match(body, start, start + 256) is None:
            return False
    elif body.startswith(b"data:", start):
        match = _FILE.search(body, before, start + 256)
        if match is None or match.start(1) != start:
            return False
    elif _BARE_FILE.search(body, before, start) is None or not _is_base64(body, start, end):
        return False
    return body.find(b" ", start, end) < 0


def _is_base64(body: bytes, start: int, end: int) -> bool:
    """The text from ``start`` to ``end`` begins and ends as base64 does."""
    first, last = min(end, start + _PROBED), max(start, end - _PROBED)
    return _end(_BASE64, body, start, first) == first and _end(_BASE64, body, last, end) == end


def _is_name(body: bytes, start: int, end: int) -> bool:
    """The text from ``start`` to ``end`` decides where the request goes: it is needed as a whole."""
    return end - start <= MAX_NAME and _NAME.search(body, max(0, start - 40), start) is not None


def _digest(content: memoryview) -> Generator[None, None, bytes]:
    """Hexadecimal digits that stand for a file, all of it: a checksum, which takes a fifth of a hash's time, tells
    those apart that begin and end alike, as uncompressed pictures with a margin do."""
    size = len(content)
    digest = blake2b(content[:_SAMPLE], digest_size=8)
    digest.update(content[-_SAMPLE:])
    checksum = zlib.crc32(content[:_SUMMED])
    for start in range(_SUMMED, size, _SUMMED):
        yield
        checksum = zlib.crc32(content[start : start + _SUMMED], checksum)
    digest.update(b"%d %d" % (size, checksum))
    return digest.hexdigest().encode()


def _too_complex() -> Refused:
    return Refused(
        413,
        f"the request body has more than {MAX_STRUCTURE} bytes of JSON beside long texts, files and lists of numbers; "
        "send it as several requests",
        code="request_too_complex",
    )
