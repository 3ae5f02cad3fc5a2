"""What clients send that mean harm, as bytes: one line for each trick.

A new version of the HTTP parser is judged by these.
"""

from router_support.raw import BODY, HOST, chunked, post

from blade_router.http import head

START = b"POST /v1/completions HTTP/1.1\r\n" + HOST
SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\nhost: x\r\n\r\n"

BROKEN: dict[str, bytes] = {
    "two lengths that differ": START + b"content-length: 2\r\ncontent-length: 9\r\n\r\n{}",
    "two lengths alike": START + b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}",
    "a list of lengths": START + b"content-length: 2, 2\r\n\r\n{}",
    "a length with a sign": START + b"content-length: +2\r\n\r\n{}",
    "a negative length": START + b"content-length: -2\r\n\r\n{}",
    "a length in hexadecimal": START + b"content-length: 0x2\r\n\r\n{}",
    "a length that is none": START + b"content-length: \r\n\r\n{}",
    "a length beyond 64 bits": START + b"content-length: 99999999999999999999999\r\n\r\n{}",
    "a length and chunks": START + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "chunks and a length": START + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "a coding that is not chunked": START + b"transfer-encoding: identity\r\n\r\n",
    "a coding before chunked": START + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a coding after chunked": START + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "chunked twice": START + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked in a list": START + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "almost chunked": START + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked with a tab": START + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST /v1/x HTTP/1.0\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded header": START + b"x-a: 1\r\n 2\r\ncontent-length: 0\r\n\r\n",
    "a folded first header": b"GET / HTTP/1.1\r\n host: x\r\n\r\n",
    "bare LF everywhere": b"GET /v1/models HTTP/1.1\nhost: x\n\n",
    "bare LF after a header": START + b"x-a: 1\nx-b: 2\r\n\r\n",
    "bare LF at the end": START + b"\n",
    "bare CR in a value": START + b"x-a: 1\rcontent-length: 2\r\n\r\n{}",
    "NUL in a value": START + b"x-a: 1\x002\r\n\r\n",
    "space before the colon": START + b"content-length : 2\r\n\r\n{}",
    "a name with a bracket": START + b"x(a: 1\r\n\r\n",
    "a name with a high byte": START + b"x\xe4: 1\r\n\r\n",
    "no name": START + b": 1\r\n\r\n",
    "no colon": START + b"x-a\r\n\r\n",
    "an unknown method": b"FETCH /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    "a method in lower case": b"get /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    "an absolute target of another scheme": b"GET ftp://elsewhere/v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    "an absolute target with a user": b"GET http://me@elsewhere/v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    "an absolute target without a host": b"GET http:///v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    "an asterisk": b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
    "a fragment": b"GET /v1/models#a HTTP/1.1\r\nhost: x\r\n\r\n",
    "a tunnel": b"CONNECT engine:80 HTTP/1.1\r\nhost: x\r\n\r\n",
    "a high byte in the target": b"GET /v1/\xff HTTP/1.1\r\nhost: x\r\n\r\n",
    "a control byte in the target": b"GET /v1/\x01 HTTP/1.1\r\nhost: x\r\n\r\n",
    "a space in the target": b"GET /v1/a b HTTP/1.1\r\nhost: x\r\n\r\n",
    "a tab for a space": b"GET\t/v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v1/models HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n",
    "HTTP/0.9": b"GET /v1/models\r\n\r\n",
    "HTTP/1.2": b"GET /v1/models HTTP/1.2\r\nhost: x\r\n\r\n",
    "HTTP/2 with prior knowledge": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a TLS greeting": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "no protocol at all": b"\x00\xff\xfe\x01garbage\r\n\r\n",
    "a chunk size that is none": START + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "a chunk size with 0x": START + b"transfer-encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
    "a chunk size with a space": START + b"transfer-encoding: chunked\r\n\r\n2 \r\n{}\r\n0\r\n\r\n",
    "a chunk size beyond 64 bits": START + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "a chunk longer than its size": START + b"transfer-encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
    "chunks with bare LF": START + b"transfer-encoding: chunked\r\n\r\n2\n{}\n0\n\n",
    "too many headers": START + b"x: y\r\n" * (head.MAX_HEADERS + 1) + b"\r\n",
}
"""What can be read in two ways, or in none: a 400 and the end of the connection, and no engine sees any of it."""

GOOD: dict[str, bytes] = {
    "a length": post(),
    "an absolute target": post(path=b"http://elsewhere:80/v1/chat/completions"),
    "chunks": chunked(BODY[:5], BODY[5:]),
    "a chunk with an extension and a trailer": chunked(BODY, trailer=b"x-sum: 1\r\n").replace(b"\r\n{", b";a=b\r\n{"),
    "chunked in capitals": chunked(BODY).replace(b"chunked", b"CHUNKED"),
    "an empty line before": b"\r\n" + post(),
    "a header without a value": post(BODY, b"x-empty:"),
    "spaces around a value": post(BODY, b"x-a: \t 1 \t"),
    "a value in Latin-1": post(BODY, b"x-a: \xe4"),
    "an offer of HTTP/2": post(BODY, b"connection: upgrade, http2-settings", b"upgrade: h2c", b"http2-settings: AAA"),
    "an offer of HTTP/2 before chunks": chunked(BODY).replace(HOST, HOST + b"connection: upgrade\r\nupgrade: h2c\r\n"),
    "identity": post(BODY, b"content-encoding: identity"),
}
"""What looks odd and is right: served, and the connection stays."""
