"""One holder of a lock at a time; whoever waits can say so."""

from __future__ import annotations

import threading
from pathlib import Path

from blade_llm.hub.locking import locked


def test_a_free_lock_is_not_waited_for(tmp_path: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        with locked(tmp_path / "lock", lambda: said.append("waiting")):
            pass
    assert not said


def test_whoever_waits_says_so_before(tmp_path: Path) -> None:
    waiting, order = threading.Event(), []

    def other() -> None:
        with locked(tmp_path / "lock", waiting.set):
            order.append("second")

    thread = threading.Thread(target=other)
    with locked(tmp_path / "lock"):
        thread.start()
        assert waiting.wait(30)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]
