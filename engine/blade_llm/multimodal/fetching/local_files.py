"""``file:`` URLs to bytes, below allowed folders only."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from io import BytesIO
from urllib.parse import unquote_to_bytes

from blade_llm.multimodal.fetching.errors import MediaError, check_length, too_large
from blade_llm.multimodal.fetching.options import KERNEL_FOLDERS


def read_file_url(url: str, roots: Sequence[str], max_bytes: int) -> bytes:
    """The file a URL points to. Links and ``..`` are followed as long as they end below one of ``roots``; nothing but a
    regular file is opened.

    Raises MediaError: outside of ``roots`` always the same, whether or not anything is there.
    """
    path = _path(url)
    if not roots:
        reason = "this server reads no local files (--allowed_local_media_path names folders); use https: or data:"
        raise MediaError("refused", reason, url)
    target = os.path.realpath(path)
    for root in map(os.path.realpath, roots):
        below = os.path.relpath(target, root)
        if below != "." and below != ".." and not below.startswith("../") and not _is_below(target, KERNEL_FOLDERS):
            return _read(url, root, below.split("/"), max_bytes)
    raise MediaError("refused", "it is not below a folder that this server may read (--allowed_local_media_path)", url)


def _path(url: str) -> str:
    check_length(url)
    rest = url[len("file:") :]
    if rest.startswith("//"):
        host, slash, rest = rest[2:].partition("/")
        rest = slash + rest
        if host.lower() not in ("", "localhost"):
            raise MediaError("invalid", "it names another host; write file:///folder/picture.png", url)
    if not rest.startswith("/"):
        raise MediaError("invalid", "its path is not absolute; write file:///folder/picture.png", url)
    if "?" in rest or "#" in rest:
        raise MediaError("invalid", "write ? and # in a path as %3F and %23", url)
    path = unquote_to_bytes(rest)
    if b"\0" in path:
        raise MediaError("invalid", "its path holds a NUL", url)
    return os.fsdecode(path)


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def _read(url: str, root: str, names: Sequence[str], max_bytes: int) -> bytes:
    try:
        descriptor = _open_below(root, names)
    except FileNotFoundError:
        raise MediaError("unavailable", "there is no such file", url) from None
    except OSError as error:
        raise MediaError("unavailable", f"this server cannot read it: {error.strerror}", url) from None
    if descriptor is None:
        raise MediaError("refused", "it is not a regular file", url)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if os.fstat(descriptor).st_size > max_bytes:
            raise too_large(url, max_bytes, "the file")
        try:
            data = _read_at_most(file.fileno(), max_bytes + 1)
        except OSError as error:
            raise MediaError("unavailable", f"this server cannot read it: {error.strerror}", url) from None
    if len(data) > max_bytes:  # grown meanwhile
        raise too_large(url, max_bytes, "the file")
    if not data:
        raise MediaError("invalid", "the file is empty", url)
    return data


def _open_below(root: str, names: Sequence[str]) -> int | None:
    """A descriptor of a regular file; None for anything else. The path has no links any more; where one has come since
    it was resolved, this raises OSError instead of following it. What is no regular file is never opened: opening alone
    makes some devices act, and blocks on a FIFO."""
    with contextlib.ExitStack() as opened:

        def place(name: str, flags: int, folder: int | None = None) -> int:
            descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | flags, dir_fd=folder)
            opened.callback(os.close, descriptor)
            return descriptor

        folder = place(root, os.O_DIRECTORY)
        for name in names[:-1]:
            folder = place(name, os.O_DIRECTORY, folder)
        found = place(names[-1], 0, folder)
        if not stat.S_ISREG(os.fstat(found).st_mode):
            return None
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY)


def _read_at_most(descriptor: int, limit: int) -> bytes:
    data = BytesIO()
    while data.tell() < limit and (chunk := os.read(descriptor, min(1 << 20, limit - data.tell()))):
        data.write(chunk)
    return data.getvalue()
