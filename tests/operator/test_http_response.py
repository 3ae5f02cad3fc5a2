"""One HTTP response, whole, in pieces, in chunks, and what is none."""

import pytest

from blade_operator.http_response import BODY_LIMIT, HEAD_LIMIT, Response, ResponseReader

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


def in_pieces(data: bytes, size: int) -> Response | None:
    reader = ResponseReader()
    found = [reader.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert all(each is None for each in found[:-1])
    return found[-1]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (OK + b"Content-Length: 4\r\n\r\nbody", Response(200, b"body", True)),
        (OK + b"content-length:0\r\nConnection: close\r\n\r\n", Response(200, b"", False)),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", Response(200, b"ok", False)),
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 1\r\n\r\n!", Response(401, b"!", True)),
        (b"HTTP/1.1 204 No Content\r\n\r\n", Response(204, b"", True)),
        (
            OK + CHUNKED + b"4\r\nbody\r\n3;x=y\r\n\r\n!\r\n0\r\n\r\n",
            Response(200, b"body\r\n!", True),
        ),
        (OK + CHUNKED + b"0\r\nTrailer: a\r\n\r\n", Response(200, b"", True)),
    ],
)
def test_a_response_comes_in_any_pieces(response: bytes, expected: Response, size: int) -> None:
    assert in_pieces(response, size) == expected


def test_after_bytes_beyond_the_response_its_connection_is_of_no_use() -> None:
    for rest in (b"Content-Length: 2\r\n\r\nok", b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"):
        assert ResponseReader().feed(OK + rest + b"HTTP/1.1 200") == Response(200, b"ok", False)


def test_it_is_known_whether_anything_came() -> None:
    reader = ResponseReader()
    assert not reader.has_begun
    reader.feed(b"HT")
    assert reader.has_begun


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/2 200\r\nContent-Length: 0\r\n\r\n",
        OK + b"\r\n",  # neither a length nor chunks: it would end with the connection
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: 1e3\r\n\r\n",
        OK + b"Content-Length: %d\r\n\r\n" % (BODY_LIMIT + 1),
        OK + b"Transfer-Encoding: gzip\r\n\r\n",
        OK + CHUNKED + b"+4\r\nbody\r\n",
        OK + CHUNKED + b"4\r\nbodyrest",
        OK + CHUNKED + b"%x\r\n" % (BODY_LIMIT + 1),
        OK + CHUNKED + b"1\r\nx\r\n" * (BODY_LIMIT // 6 + 1),
        OK + b"A: " + b"x" * HEAD_LIMIT,
        OK + b"A: " + b"x" * HEAD_LIMIT + b"\r\n\r\n",
    ],
)
def test_what_is_no_response_or_too_long_is_an_error(response: bytes) -> None:
    with pytest.raises(ValueError, match="response"):
        ResponseReader().feed(response)
