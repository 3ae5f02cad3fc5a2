"""The token that opens the internal port: follows its file, and decides who can reach the port at all."""

import logging
import os
from pathlib import Path

import pytest

from blade_llm.cli.server import StartError, _bind_ports, _token_file
from blade_llm.server.http.internal_token import InternalToken
from blade_protocol import environment
from blade_protocol.internal_token import ROTATION_SECONDS


def replace(path: Path, token: str) -> None:
    """As the kubelet does: write beside, then change a link."""
    beside = path.with_name(f"..{token or 'empty'}")
    beside.write_text(token)
    link = path.with_name("..link")
    link.symlink_to(beside)
    os.replace(link, path)


def test_token_follows_its_file(tmp_path: Path) -> None:
    path, now = tmp_path / "token", 0.0
    replace(path, "one\n")
    token = InternalToken(path, clock=lambda: now)
    assert token.accepts("one")
    assert not token.accepts("")
    assert not token.accepts("two")
    replace(path, "two")
    assert token.accepts("two")
    assert token.accepts("one"), "other pods may see the new one later"
    assert not token.accepts("")
    now = ROTATION_SECONDS
    assert token.accepts("two")
    assert not token.accepts("one")


def test_a_file_that_is_gone_or_empty_leaves_the_last_token(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "token"
    replace(path, "one")
    token = InternalToken(path)
    with caplog.at_level(logging.WARNING):
        path.unlink()
        assert token.accepts("one")
        replace(path, "")
        assert token.accepts("one")
        assert not token.accepts(""), "an empty file opens nothing"
    assert caplog.text.count("the file is empty") == 1, "said once, not with every request"
    replace(path, "two")
    assert token.accepts("two")


@pytest.mark.parametrize(("content", "says"), [(None, "No such file"), (" \n", "the file is empty")])
def test_no_start_without_the_token_that_was_promised(
    content: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv(environment.INTERNAL_TOKEN_FILE, str(path))
    with pytest.raises(StartError, match=says):
        _token_file()


@pytest.mark.parametrize(("loopback_only", "address"), [(True, "127.0.0.1"), (False, "0.0.0.0")])
def test_only_with_a_token_is_the_internal_port_open_to_other_machines(loopback_only: bool, address: str) -> None:
    flags = {"host": "0.0.0.0", "port": 0, "api_server_count": 1, "internal_port": 0}
    [public], internal = _bind_ports(flags, loopback_only=loopback_only)
    with public, internal:
        assert public.getsockname()[0] == "0.0.0.0"
        assert internal.getsockname()[0] == address
