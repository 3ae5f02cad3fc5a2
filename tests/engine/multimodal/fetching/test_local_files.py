"""``file:`` URLs: what lies below allowed folders, and nothing else."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from blade_llm.multimodal.fetching import FetchOptions, MediaError
from blade_llm.multimodal.fetching import local_files as module
from blade_llm.multimodal.fetching.local_files import read_file_url

PICTURE = b"\x89PNG picture"
SECRET = b"secret"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "media"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "a b.png").write_bytes(PICTURE)
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "media-of-others").mkdir()
    (tmp_path / "media-of-others" / "secret").write_bytes(SECRET)
    return root


def read(url: str, *roots: Path, limit: int = 1000) -> bytes:
    return read_file_url(url, [str(root) for root in roots], limit)


def test_allowed(root: Path, tmp_path: Path) -> None:
    for url in (
        f"file://{root}/sub/a%20b.png",
        f"file://localhost{root}/sub/a%20b.png",
        f"file:{root}/sub/a b.png",
        f"file://{root}/sub/../sub/./a%20b.png",
        f"file://{root}/%73ub//a%20b.png",
    ):
        assert read(url, tmp_path / "elsewhere", root) == PICTURE


def test_links_that_stay_below_are_followed(root: Path, tmp_path: Path) -> None:
    (root / "link.png").symlink_to("sub/a b.png")
    (root / "folder").symlink_to(root / "sub")
    (tmp_path / "root").symlink_to(root)
    assert read(f"file://{root}/link.png", root) == PICTURE
    assert read(f"file://{root}/folder/a%20b.png", root) == PICTURE
    assert read(f"file://{tmp_path}/root/sub/a%20b.png", tmp_path / "root") == PICTURE
    assert read(f"file://{root}/sub/a%20b.png", tmp_path / "root") == PICTURE


def test_escapes(root: Path, tmp_path: Path) -> None:
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "folder").symlink_to(tmp_path)
    (root / "again").symlink_to("out")
    (root / "proc").symlink_to("/proc/self/environ")
    refused = set()
    for url in (
        f"file://{tmp_path}/secret",
        f"file://{tmp_path}/nothing-there",
        f"file://{root}/../secret",
        f"file://{root}/%2e%2e/secret",
        f"file://{root}/sub/..%2f..%2fsecret",
        f"file://{root}/out",
        f"file://{root}/again",
        f"file://{root}/folder/secret",
        f"file://{root}/proc",
        f"file://{tmp_path}/media-of-others/secret",
        "file:///proc/self/environ",
        "file:///dev/zero",
        "file:///",
        f"file://{root}",
        f"file://{root}/sub/..",
    ):
        with pytest.raises(MediaError) as raised:
            read(url, root)
        assert raised.value.kind == "refused", url
        refused.add(str(raised.value).split(": ")[-1])
    assert len(refused) == 1  # the same whether or not anything is there


def test_files_of_the_kernel_are_refused_below_any_root() -> None:
    for url in ("file:///proc/self/environ", "file:///dev/zero", "file:///sys/kernel/notes"):
        with pytest.raises(MediaError, match="not below"):
            read_file_url(url, ["/"], 1000)


def test_only_regular_files_are_opened(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(root)
        listener.bind("socket")
        for name in ("fifo", "socket", "sub"):
            with pytest.raises(MediaError, match="not a regular file"):
                read(f"file://{root}/{name}", root)


@pytest.mark.parametrize("place", ["folder", "file"])
def test_a_link_that_comes_after_the_check_is_not_followed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Between resolving and opening, another process exchanges a folder or the file for a link to the outside."""
    (root / "sub" / "secret").write_bytes(PICTURE)
    open_below = module._open_below

    def exchanged(*arguments: object) -> int | None:
        if place == "file":
            (root / "sub" / "secret").unlink()
            (root / "sub" / "secret").symlink_to(tmp_path / "secret")
        else:
            (root / "sub").rename(root / "moved")
            (root / "sub").symlink_to(tmp_path)
        return open_below(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_open_below", exchanged)
    with pytest.raises(MediaError):
        read(f"file://{root}/sub/secret", root)


def test_sizes(root: Path) -> None:
    (root / "large").write_bytes(bytes(1001))
    (root / "full").write_bytes(bytes(1000))
    (root / "empty").touch()
    assert read(f"file://{root}/full", root) == bytes(1000)
    with pytest.raises(MediaError, match="more than 1000 bytes") as raised:
        read(f"file://{root}/large", root)
    assert raised.value.kind == "too_large"
    with pytest.raises(MediaError, match="empty"):
        read(f"file://{root}/empty", root)


def test_a_large_file_is_not_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (root / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    monkeypatch.setattr(module, "_read_at_most", None)
    with pytest.raises(MediaError, match="more than 1000 bytes"):
        read(f"file://{root}/sparse", root)


def test_a_file_that_grows_while_it_is_read_is_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    growing = root / "growing"
    growing.write_bytes(bytes(10))
    read_at_most = module._read_at_most

    def grown(descriptor: int, limit: int) -> bytes:
        growing.write_bytes(bytes(5000))
        data = read_at_most(descriptor, limit)
        assert len(data) == 1001
        return data

    monkeypatch.setattr(module, "_read_at_most", grown)
    with pytest.raises(MediaError, match="more than 1000 bytes"):
        read(f"file://{growing}", root)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file://host/media/a.png", "another host"),
        ("file:media/a.png", "not absolute"),
        ("file:", "not absolute"),
        ("file://", "not absolute"),
        ("file:///media/a.png?x", "%3F"),
        ("file:///media/a.png#x", "%3F"),
        ("file:///media/a%00.png", "NUL"),
        ("file:///" + "a" * 9000, "longer than"),
    ],
)
def test_malformed(url: str, reason: str) -> None:
    with pytest.raises(MediaError, match=reason):
        read_file_url(url, ["/media"], 1000)


def test_missing_files_and_names_too_long(root: Path) -> None:
    with pytest.raises(MediaError, match="no such file"):
        read(f"file://{root}/nothing.png", root)
    with pytest.raises(MediaError, match="cannot read it"):
        read(f"file://{root}/{'a' * 300}", root)


def test_without_roots_nothing_is_read(root: Path) -> None:
    with pytest.raises(MediaError, match="--allowed_local_media_path"):
        read(f"file://{root}/sub/a%20b.png")


@pytest.mark.parametrize("path", ["/", "media", "/media/../etc", "/proc", "/proc/self", "/dev/shm", "/sys"])
def test_roots_that_cannot_be_meant(path: str) -> None:
    with pytest.raises(ValueError, match="allowed_local_media_path"):
        FetchOptions(allowed_local_media_path=(path,))
