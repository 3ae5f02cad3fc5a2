"""The built files of the web UI, read once and kept in memory as they are sent.

They are what Vite makes of ``router/ui/``, and hold nothing secret.
"""

import gzip
import hashlib
import mimetypes
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path

from blade_router.http.client import Client
from blade_router.http.errors import Headers, Refused
from blade_router.http.head import RawRequest

FOLDER = Path(__file__).resolve().parent / "static"
INDEX = "index.html"
MOST_BYTES = 8 << 20
"""Of all files together: more is not what Vite makes of a page."""
LEAST_COMPRESSED = 512
"""Bytes from which on compression is worth its header."""
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
GUARDS: Headers = [
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
"""Headers of every response below ``/ui``."""
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".json": "application/json",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file, ready to be sent."""

    content: bytes
    compressed: bytes
    """By gzip; empty where that is no smaller."""
    headers: Headers
    etag: bytes


class StaticFiles:
    """The files of a folder; without an ``index.html`` in it there are none."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files: dict[str, StaticFile] = {}
        size = 0
        for path in sorted(folder.rglob("*")):
            if not path.is_file() or path.is_symlink() or path.name.startswith("."):
                continue
            content = path.read_bytes()
            size += len(content)
            if size > MOST_BYTES:
                raise ValueError(f"{folder} has more than {MOST_BYTES} bytes: it is no build of the web UI")
            name = path.relative_to(folder).as_posix()
            self._files[name] = _read(name, content)
        if INDEX not in self._files:
            self._files.clear()

    def __len__(self) -> int:
        return len(self._files)

    def respond(self, name: str, request: RawRequest, client: Client) -> Awaitable[None]:
        """Send the file of that name, ``index.html`` for an empty one.

        Raises:
            ClientGone: the client has disconnected.
        """
        file = self._files.get(name or INDEX)
        if file is None:
            if self._files:
                return client.refuse(Refused(404, f"the web UI has no file {name!r}", code="not_found"))
            message = "this router was installed without the web UI's files; build them (make ui) and install it again"
            return client.refuse(Refused(404, message, code="not_found"))
        if file.etag in request.header(b"if-none-match"):
            client.start(304, [*file.headers, (b"etag", file.etag)])
            return client.finish()
        body, headers = file.content, [*GUARDS, *file.headers, (b"etag", file.etag)]
        if file.compressed and _takes_gzip(request):
            body = file.compressed
            headers.append((b"content-encoding", b"gzip"))
        client.start(200, [*headers, (b"content-length", b"%d" % len(body))])
        return client.finish(body)


def _read(name: str, content: bytes) -> StaticFile:
    suffix = Path(name).suffix
    kind = _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    compressed = gzip.compress(content, 9, mtime=0) if len(content) >= LEAST_COMPRESSED else b""
    # Vite puts a hash of the content into the names of assets.
    lasting = name.startswith("assets/")
    headers = [
        (b"content-type", kind.encode()),
        (b"cache-control", b"public, max-age=31536000, immutable" if lasting else b"no-cache"),
        (b"vary", b"accept-encoding"),
    ]
    etag = b'"%b"' % hashlib.sha256(content).hexdigest()[:24].encode()
    return StaticFile(content, compressed if len(compressed) < len(content) * 0.95 else b"", headers, etag)


def _takes_gzip(request: RawRequest) -> bool:
    for coding in request.header(b"accept-encoding").lower().split(b","):
        name, _, weight = coding.partition(b";")
        if name.strip() in (b"gzip", b"*"):
            return weight.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False
