"""A conversation, as far as it needs no cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NoReturn

import httpx
import pytest

from blade_operator.kubectl.commands.chat import Chat
from blade_operator.kubectl.places.place import Reached


def test_a_question_that_was_stopped_before_its_answer_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(chat: Chat) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(Chat, "_stream", stop)
    with httpx.Client() as client:
        chat = Chat(client, Reached("nowhere:1"), "m", SimpleNamespace(system="Be brief"))  # type: ignore[arg-type]
        with pytest.raises(KeyboardInterrupt):
            chat.ask("What?")
    assert chat.messages == [{"role": "system", "content": "Be brief"}]
