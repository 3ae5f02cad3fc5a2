"""Bodies behind an offer of another protocol, however they are cut into pieces."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blade_protocol.body_framing import BodyFraming

CHUNKED = b"1\r\na\r\n0003;x=y\r\nbcd\r\nA\r\n0123456789\r\n1\r\n\n\r\n0\r\nx-a: b\r\n\r\n"
BODY = b"abcd0123456789\n"


def read(pieces: list[bytes], length: int | None = None) -> tuple[bytes, bytes | None]:
    """The body of these pieces, and what is behind it in the last one that was read."""
    body = bytearray()
    framing = BodyFraming(length, body.extend)
    rest = None
    for piece in pieces:
        rest = framing.feed(piece)
        if rest is not None:
            break
    return bytes(body), rest


@given(st.lists(st.integers(1, len(CHUNKED) - 1), max_size=8))
def test_a_body_is_the_same_however_it_is_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(CHUNKED)]
    pieces = [CHUNKED[start:end] for start, end in itertools.pairwise(places)]
    pieces[-1] += b"GET"
    assert read(pieces) == (BODY, b"GET")
    assert read(pieces, len(CHUNKED)) == (CHUNKED, b"GET")


@pytest.mark.parametrize(
    "malformed",
    [
        b"1\r\nab\r\n",
        b"1\r\na\n",
        b"1\na\r\n",
        b" 1\r\na\r\n",
        b"1 \r\na\r\n",
        b"-1\r\na\r\n",
        b"\r\n",
        b"0x1\r\na\r\n",
        b"f" * 17 + b"\r\n",
        b"1\r\na\r\n1\r\nab\r\n",
        b"0\r\nno trailer\r\n\r\n",
        b"1;\x00\r\na\r\n",
    ],
)
def test_what_is_malformed_is_refused_however_it_comes(malformed: bytes) -> None:
    with pytest.raises(ValueError, match=r"CRLF|malformed|longer"):
        read([malformed])
    with pytest.raises(ValueError, match=r"CRLF|malformed|longer"):
        read([bytes((byte,)) for byte in malformed])


def test_a_flood_of_chunks_is_read_in_one_pass() -> None:
    """Copying what is left for each chunk would take hours."""
    count = 1 << 20
    assert read([b"1\r\nx\r\n" * count + b"0\r\n\r\n"]) == (b"x" * count, b"")
