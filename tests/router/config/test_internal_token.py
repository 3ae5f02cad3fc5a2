"""Access to the router's internal routes: by the internal token or from this machine, under two rules."""

from pathlib import Path

import pytest

from blade_protocol.internal_token import ROTATION_SECONDS
from blade_router.config.internal_token import may_see_routes, may_see_signals
from blade_router.config.token_header import REREAD_SECONDS, TokenHeader

HERE, ELSEWHERE = "127.0.0.1", "10.0.0.7"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("secret\n")
    return path


@pytest.mark.parametrize("host", [HERE, "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.7", ELSEWHERE, "", "unix"])
def test_without_a_token_only_this_machine_has_access(host: str) -> None:
    here = host in (HERE, "::1", "::ffff:127.0.0.1")
    assert may_see_signals(None, "anything", host) == here
    assert may_see_routes(None, "anything", host, forwarded=False) == here


@pytest.mark.parametrize("host", [HERE, ELSEWHERE])
def test_the_token_opens_both_from_anywhere(file: Path, host: str) -> None:
    for given, opens in (("secret", True), ("wrong", False), ("secret\xff", False)):
        assert may_see_signals(file, given, host) == opens
        assert may_see_routes(file, given, host, forwarded=True) == opens


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff"])
def test_a_file_without_a_token_lets_nobody_in(file: Path, content: bytes | None) -> None:
    file.unlink() if content is None else file.write_bytes(content)
    for given in ("secret", " "):
        assert not may_see_signals(file, given, HERE)
        assert not may_see_routes(file, given, HERE, forwarded=False)


def test_people_on_this_machine_need_no_token_and_programs_do(file: Path) -> None:
    assert may_see_routes(file, "", HERE, forwarded=False)
    assert not may_see_signals(file, "", HERE)


def test_what_a_proxy_on_this_machine_passes_on_is_not_from_here(file: Path) -> None:
    assert not may_see_routes(file, "", HERE, forwarded=True)
    assert not may_see_routes(None, "", HERE, forwarded=True)


def test_requests_carry_the_token_that_the_file_holds(tmp_path: Path) -> None:
    path, now = tmp_path / "token", 0.0
    path.write_text("one\n")
    token = TokenHeader(path, clock=lambda: now)
    assert token.lines() == b"x-blade-internal-token: one\r\n"
    path.write_text("two\n")
    assert token.lines() == b"x-blade-internal-token: one\r\n", "the file is not read for each request"
    now += REREAD_SECONDS
    assert token.lines() == b"x-blade-internal-token: two\r\nx-blade-internal-token: one\r\n", "engines may be later"
    assert token.accepts("one")
    assert token.accepts("two")
    now += ROTATION_SECONDS
    assert token.lines() == b"x-blade-internal-token: two\r\n"
    assert not any(token.accepts(given) for given in ("one", "", "\xff"))
    assert token.accepts("two")
    for broken in ("", "two\r\nx-evil: 1"):
        path.write_text(broken)
        now += REREAD_SECONDS
        assert token.lines() == b"x-blade-internal-token: two\r\n", "what cannot be sent leaves the last one"
    path.unlink()
    now += REREAD_SECONDS
    assert token.lines() == b"x-blade-internal-token: two\r\n"
    assert TokenHeader(None).lines() == b""
    assert not TokenHeader(None).accepts("two")
