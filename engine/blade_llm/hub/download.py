"""One file of a model hub onto the disk: resumed where it stopped, retried after the pause that the hub requests, and
verified.

The hub library's own download starts a file again when its process was killed and does not hash plain HTTP transfers. A
model server's init container is restarted in mid-download often enough, and a wrong byte in the weights shows only as
odd outputs, so this part is ours; names, URLs, tokens and the HTTP session are still the library's.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any, Final, TypeVar

from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import get_session, hf_raise_for_status

from blade_llm.hub.model import RemoteFile
from blade_llm.models.errors import ModelFilesError

MAX_TRIES: Final = 6
"""Attempts without any progress before giving up; one that brought bytes starts the count again."""
MAX_CONNECT_TRIES: Final = 3
"""The same where not even a connection comes about: no network is worth saying soon."""
MAX_RETRY_AFTER_S: Final = 300.0
"""A hub that requests a longer pause than this is reported instead of waited for."""
TIMEOUT_S: Final = 30.0
"""Longest silence of the hub before a transfer counts as cut."""
RETRIED_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})
CHUNK_BYTES: Final = 1 << 20

# The library's HTTP client is httpx or, in later releases, its fork: take the error class from the library itself.
TransportError: type[Exception] = next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")

Result = TypeVar("Result")


def with_retries(call: Callable[[], Result], stop: Event) -> Result:
    """``call()`` again, after a pause, while the hub is busy or the connection breaks; at most :data:`MAX_TRIES` times.

    ``stop`` ends a pause early. Raises what the last try raised.
    """
    for attempt in range(1, MAX_TRIES + 1):
        try:
            return call()
        except TransportError as error:
            pause_or_raise(error, attempt, stop)
    raise AssertionError("the last try returns or raises")


def pause_or_raise(error: Exception, attempt: int, stop: Event) -> None:
    """Sleep before another attempt, or raise ``error`` when another one makes no sense.

    A ``Retry-After`` is honoured, else the pause doubles; both with jitter, so that replicas do not come back together.
    """
    response = getattr(error, "response", None)
    retried = response is None or response.status_code in RETRIED_STATUS
    tries = MAX_CONNECT_TRIES if type(error).__name__ == "ConnectError" else MAX_TRIES
    header = "" if response is None else response.headers.get("Retry-After", "")
    requested = float(header) if header.isdigit() else None
    if not retried or attempt >= tries or stop.is_set() or (requested or 0.0) > MAX_RETRY_AFTER_S:
        raise error
    jitter = random.random()
    _wait(requested + jitter if requested is not None else min(2.0 ** (attempt - 1), 30.0) * (0.5 + jitter / 2), stop)


def _wait(seconds: float, stop: Event) -> None:
    stop.wait(seconds)


def download(
    file: RemoteFile,
    destination: Path,
    *,
    headers: dict[str, str],
    stop: Event,
    on_bytes: Callable[[int], None],
    renew: Callable[[], None] | None = None,
) -> None:
    """Fetch ``file`` to ``destination`` through ``destination`` + ``.partial``, which a later call continues.

    ``renew`` puts fresh credentials into ``headers`` when they are refused in mid-download.
    ``on_bytes`` gets every change of the number of bytes present, negative when some had to be thrown away. Raises
    :class:`ModelFilesError` when the content is wrong twice, the hub library's errors, ``OSError`` and
    ``InterruptedError`` once ``stop`` is set.
    """
    partial = destination.with_name(destination.name + ".partial")
    if partial.exists():
        on_bytes(partial.stat().st_size)
    for last in (False, True):
        _fetch(file, partial, headers, stop, on_bytes, renew)
        found = content_digest(partial, file.digest)
        if found == file.digest:
            partial.replace(destination)
            return
        on_bytes(-partial.stat().st_size)
        partial.unlink()
        if last:
            raise ModelFilesError(
                f"{file.name} arrived with the checksum {found} instead of {file.digest}, twice; a proxy or mirror "
                "(HF_ENDPOINT) changes it: fetch the model another way and pass its folder as --model"
            )


def content_digest(path: Path, like: str) -> str:
    """The digest of a file in the form of ``like``; see :class:`~blade_llm.hub.model.RemoteFile`."""
    if "-" in like:
        return _digest_of_parts(path, int(like.rpartition("-")[2]))
    if len(like) == 64:
        digest = hashlib.sha256()
    elif len(like) == 32:
        digest = hashlib.md5(usedforsecurity=False)
    else:
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _digest_of_parts(path: Path, part_bytes: int) -> str:
    """What S3 makes of an upload in parts: the md5 of their md5s."""
    parts = []
    with path.open("rb") as stream:
        while True:
            part, left = hashlib.md5(usedforsecurity=False), part_bytes
            while left and (chunk := stream.read(min(left, CHUNK_BYTES))):
                part.update(chunk)
                left -= len(chunk)
            if left == part_bytes:
                break
            parts.append(part.digest())
    whole = hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()
    return f"{whole}-{len(parts)}-{part_bytes}"


def _fetch(
    file: RemoteFile,
    partial: Path,
    headers: dict[str, str],
    stop: Event,
    on_bytes: Callable[[int], None],
    renew: Callable[[], None] | None,
) -> None:
    """Bring ``partial`` to ``file.size`` bytes, over as many connections as it takes."""
    attempt, renewed_at = 0, -1
    while True:
        before = partial.stat().st_size if partial.exists() else 0
        if before > file.size:
            on_bytes(-before)
            partial.unlink()
            before = 0
        if before == file.size and partial.exists():
            return
        try:
            _fetch_once(file, partial, before, headers, stop, on_bytes)
            error: Exception = ModelFilesError(f"the hub sent less of {file.name} than its {file.size} bytes")
        except TransportError as raised:
            error = raised
            if renew and renewed_at != before and getattr(getattr(raised, "response", None), "status_code", 0) == 401:
                renewed_at = before  # once at each place: who is refused at once has no access
                renew()
                continue
        after = partial.stat().st_size if partial.exists() else 0
        if after < file.size:
            attempt = 1 if after > before else attempt + 1
            pause_or_raise(error, attempt, stop)


def _fetch_once(
    file: RemoteFile, partial: Path, begin: int, headers: dict[str, str], stop: Event, on_bytes: Callable[[int], None]
) -> None:
    # Offsets count bytes of the file, so it must come uncompressed.
    request_headers = {**headers, "Accept-Encoding": "identity"}
    if begin:
        request_headers["Range"] = f"bytes={begin}-"
    with get_session().stream("GET", file.url, headers=request_headers, timeout=TIMEOUT_S) as response:
        hf_raise_for_status(response)
        resumed = begin > 0 and _continues(response, begin)
        if begin and not resumed:
            on_bytes(-begin)
        left = file.size - begin if resumed else file.size
        with partial.open("ab" if resumed else "wb", buffering=CHUNK_BYTES) as stream:
            # Bytes as they come: gathering them into chunks would lose those of a chunk that is cut off.
            for chunk in response.iter_bytes():
                if stop.is_set():
                    raise InterruptedError("the download was stopped")
                chunk = chunk[:left]
                stream.write(chunk)
                on_bytes(len(chunk))
                left -= len(chunk)
                if not left:
                    return  # a server that sends more must not fill the disk


def _continues(response: Any, begin: int) -> bool:
    """Whether the response starts at ``begin``; a server that ignores ranges answers 200 with the whole file."""
    span = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return response.status_code == 206 and span is not None and int(span[1]) == begin
