"""``data:`` URLs (RFC 2397) to bytes."""

from __future__ import annotations

import binascii
import time
from io import BytesIO
from typing import Final

import numpy as np

from blade_llm.multimodal.fetching.errors import MediaError, too_large

_MAX_HEADER: Final = 1024
"""Characters before the comma: media type and parameters."""
_CHUNK: Final = 1 << 17
"""Characters decoded at a time: ``binascii`` holds the interpreter's lock for a fraction of a millisecond."""
_PAUSE_S: Final = 50e-6
"""Between two chunks, for the event loop: threads that go on computing would leave it the lock every 5 ms only."""
_WHITESPACE: Final = b" \t\r\n\f"
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")

_HEX: Final = np.full(256, 255, np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_HEX[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)


def decode_data_url(url: str, max_bytes: int) -> bytes:
    """The data of ``url``: percent-encoded, or base64, also its URL-safe alphabet, unpadded, with white space.

    Raises MediaError for a malformed URL, an empty one, and one of more than ``max_bytes``; of those that say their
    length before they are decoded.
    """
    comma = url.find(",", 0, _MAX_HEADER)
    if comma < 0:
        raise MediaError("invalid", "no comma after the media type; write data:image/png;base64,…", url)
    start = comma + 1
    base64 = url[:comma].rstrip().lower().endswith(";base64")
    if _says_too_much(url, start, base64, max_bytes):
        raise too_large(url, max_bytes)
    data = _decode(url, start, base64, max_bytes)
    if not data:
        raise MediaError("invalid", "it holds no data", url)
    return data


def _says_too_much(url: str, start: int, base64: bool, max_bytes: int) -> bool:
    """Whether the length alone says that there are more than ``max_bytes``."""
    count = len(url) - start
    if (count * 3 // 4 - 2 if base64 else count) <= max_bytes:
        return False
    if url.find("%", start) >= 0:  # every character may take three, and four of base64 are three bytes
        return count > max_bytes * 4 + _CHUNK
    if not base64:
        return True
    white = sum(url.count(chr(mark), start) for mark in _WHITESPACE)
    return (count - white) * 3 // 4 - 2 > max_bytes


def _decode(url: str, start: int, base64: bool, max_bytes: int) -> bytes:
    data = BytesIO()
    rest = b""  # of base64: what the next chunk decides, the last group and its padding
    while start < len(url):
        end = min(start + _CHUNK, len(url))
        if "%" in url[end - 2 : end]:
            end = min(url.index("%", end - 2) + 3, len(url))
        try:
            chunk = _percent_decoded(url[start:end].encode("ascii"))
        except ValueError:
            reason = "its data is no ASCII, or has a % without two hex digits; percent-encode it or use base64"
            raise MediaError("invalid", reason, url) from None
        start = end
        if base64:
            groups = rest + chunk.translate(_URL_SAFE, _WHITESPACE)
            whole = len(groups) if start == len(url) else max(len(groups) - 4, 0) // 4 * 4
            chunk, rest = _base64_decoded(groups[:whole], start == len(url), url), groups[whole:]
        if data.tell() + len(chunk) > max_bytes:
            raise too_large(url, max_bytes)
        data.write(chunk)
        if start < len(url):
            time.sleep(_PAUSE_S)
    return data.getvalue()  # without a copy


def _percent_decoded(text: bytes) -> bytes:
    """Raises ValueError for a ``%`` without two hex digits. (``urllib`` makes a list with an entry for every ``%``:
    gigabytes of a long URL.)"""
    if b"%" not in text:
        return text
    encoded = np.frombuffer(text, np.uint8)
    at = np.flatnonzero(encoded == ord("%"))
    if at[-1] + 2 >= len(encoded):
        raise ValueError("ends within %xx")
    high, low = _HEX[encoded[at + 1]], _HEX[encoded[at + 2]]
    if max(high.max(), low.max()) > 15:
        raise ValueError("no hex digits after %")
    decoded = encoded.copy()
    decoded[at] = high * 16 + low
    kept = np.ones(len(encoded), np.bool_)
    kept[at + 1] = kept[at + 2] = False
    return decoded[kept].tobytes()


def _base64_decoded(groups: bytes, is_last: bool, url: str) -> bytes:
    reason = "its data is no base64"
    if is_last:
        groups = groups.removesuffix(b"=").removesuffix(b"=")
        groups += b"=" * (-len(groups) % 4)
    elif b"=" in groups:
        raise MediaError("invalid", f"{reason}: padding (=) before the end", url)
    try:
        return binascii.a2b_base64(groups, strict_mode=True)
    except binascii.Error as error:
        raise MediaError("invalid", f"{reason}: {str(error).lower()}", url) from None
